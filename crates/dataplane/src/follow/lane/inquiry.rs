//! Policies asked about many packets together.

use arrayvec::ArrayVec;
use wire::flow::Flow;

use crate::batch::BATCH_PACKETS;
use crate::flows::Flows;
use crate::policy::Policy;
use crate::spd::{Asked, DefaultAction, Lookup, Many, Question, Side};

/// The policies of a direction, if many packets are quickly looked up among them.
#[inline]
pub(super) fn quickly<'v>(side: &Side<'v>) -> Option<Many<'v>> {
    side.many().filter(|_| !Flows::is_worth_it(side))
}

/// What policies are asked about packets: once about those that are the same to them, and come one after the other.
pub(super) struct Inquiry<'v> {
    pub(super) many: Many<'v>,
    last: Option<Question>,
    pub(super) asked: ArrayVec<Asked<'v>, BATCH_PACKETS>,
}

impl<'v> Inquiry<'v> {
    pub(super) fn of(many: Many<'v>) -> Inquiry<'v> {
        Inquiry { many, last: None, asked: ArrayVec::new() }
    }

    /// Takes note of a packet that is whole, and of IPv4, and asks for the memory of the answer: how many are asked for.
    #[inline(always)]
    pub(super) fn note(&mut self, flow: &Flow) -> usize {
        if let Some(question) = self.many.flow(flow)
            && self.last.is_none_or(|last| !self.many.same(last, question))
        {
            self.last = Some(question);
            self.asked.push(self.many.ask(question));
        }
        self.asked.len()
    }

    /// The policies that presumably decide.
    #[inline(always)]
    pub(super) fn presumed(&self) -> ArrayVec<Option<&'v Policy>, BATCH_PACKETS> {
        let mut presumed = ArrayVec::new();
        for asked in &self.asked {
            presumed.push(self.many.presume(*asked));
        }
        presumed
    }

    /// What the policies say in answer to one of the questions.
    #[inline(always)]
    pub(super) fn lookup(&self, at: usize, presumed: &[Option<&'v Policy>]) -> Option<Lookup<'v>> {
        Some(self.many.lookup(*self.asked.get(at)?, *presumed.get(at)?))
    }

    /// Of how many of the first no policy says anything, so that they may pass.
    #[inline(never)]
    pub(super) fn free(&self) -> usize {
        let presumed = self.presumed();
        let is_free = |(asked, presumed): &(&Asked<'v>, &Option<&'v Policy>)| {
            let found = self.many.lookup(**asked, **presumed);
            matches!(found, Lookup::Default(DefaultAction::Accept))
        };
        self.asked.iter().zip(&presumed).take_while(is_free).count()
    }
}

/// The last of so many groups.
#[inline(always)]
pub(super) fn last_of(groups: usize) -> u8 {
    (groups as u8).wrapping_sub(1)
}
