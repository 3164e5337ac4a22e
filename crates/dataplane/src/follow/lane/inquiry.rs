//! Policies asked about many packets together.

use arrayvec::ArrayVec;
use wire::ipv4;

use super::group::Group;
use crate::batch::BATCH_PACKETS;
use crate::cpu::{Cache, asked_cache};
use crate::flows::Flows;
use crate::policy::{Fields, Policy};
use crate::spd::{Asked, DefaultAction, Lookup, Many, ManyV6, Question, Side};

/// Whether many packets are quickly looked up among the policies of a direction, of which there are some.
#[inline]
pub(super) fn is_quick(side: &Side<'_>) -> bool {
    !side.is_empty() && !Flows::is_worth_it(side)
}

/// Of each question the policy that presumably decides.
pub(super) type Presumed<'v> = ArrayVec<Option<&'v Policy>, BATCH_PACKETS>;

/// The question about the packet before, if there was one. It is not with the others, as it is only just written when it is read: it
/// has to be in registers, and what answers are found by out of line is in memory.
#[derive(Default)]
pub(super) struct Last(Question);

/// What policies are asked about packets of IPv4: once about those that are the same to them, and come one after the other.
pub(super) struct Inquiry<'v> {
    /// `None` if there is no policy for any such packet.
    many: Option<Many<'v>>,
    default: DefaultAction,
    asked: ArrayVec<Asked<'v>, BATCH_PACKETS>,
}

impl<'v> Inquiry<'v> {
    /// Asks the policies of a direction that [are quick](is_quick).
    pub(super) fn of(side: &Side<'v>) -> Inquiry<'v> {
        let default = side.spd().default_action(side.direction());
        Inquiry { many: side.many(), default, asked: ArrayVec::new() }
    }

    /// Takes note of a packet with such a header, and asks for the memory of the answer.
    #[inline(always)]
    pub(super) fn note(&mut self, header: &ipv4::Plain, last: &mut Last, cache: Cache) -> Group {
        let Some(many) = &self.many else { return Group::FIRST };
        let question = many.header(header);
        if self.asked.is_empty() || !many.same(last.0, question) {
            last.0 = question;
            self.asked.push(many.ask(question, cache));
        }
        Group::last_of(self.asked.len())
    }

    /// The policies that presumably decide.
    #[inline(always)]
    pub(super) fn presumed(&self, cache: Cache) -> Presumed<'v> {
        let mut presumed = Presumed::new();
        self.presume(&mut presumed, cache);
        presumed
    }

    /// The same where it needs not to be moved from.
    #[inline(always)]
    pub(super) fn presume(&self, presumed: &mut Presumed<'v>, cache: Cache) {
        if let Some(many) = &self.many {
            for asked in &self.asked {
                presumed.push(many.presume(*asked, cache));
            }
        }
    }

    /// What the policies say in answer to one of the questions.
    #[inline(always)]
    pub(super) fn lookup(&self, at: usize, presumed: &Presumed<'v>) -> Option<Lookup<'v>> {
        Some(self.many.as_ref()?.lookup(*self.asked.get(at)?, *presumed.get(at)?))
    }

    /// How many questions there are: where no policy is for any packet, there is one.
    #[inline(always)]
    pub(super) fn questions(&self) -> usize {
        if self.many.is_some() { self.asked.len() } else { 1 }
    }

    /// What they say in answer to the questions from the `first` on: how many there are, up to one of which `goes_on` says no.
    #[inline(always)]
    pub(super) fn answer(
        &self,
        first: usize,
        presumed: &Presumed<'v>,
        mut goes_on: impl FnMut(Lookup<'v>) -> bool,
    ) -> usize {
        let Some(many) = &self.many else {
            return usize::from(first == 0 && goes_on(Lookup::Default(self.default)));
        };
        let answers = self.asked.iter().zip(presumed).skip(first);
        answers.take_while(|(asked, presumed)| goes_on(many.lookup(**asked, **presumed))).count()
    }

    /// Of how many of the first no policy says anything, so that they may pass.
    #[inline(never)]
    pub(super) fn free(&self) -> usize {
        self.answer(0, &self.presumed(asked_cache()), is_free)
    }
}

/// The same about packets of IPv6. By itself, so that nothing of what is asked about others has to be in memory where a packet is
/// dealt with out of line.
pub(super) struct InquiryV6<'v> {
    many: ManyV6<'v>,
    asked: ArrayVec<AskedV6, BATCH_PACKETS>,
}

/// A question, and what [`ManyV6::ask`] said of it.
struct AskedV6 {
    fields: Fields<u128>,
    tag: u32,
}

impl<'v> InquiryV6<'v> {
    /// Asks the policies of a direction.
    pub(super) fn of(side: &Side<'v>) -> InquiryV6<'v> {
        InquiryV6 { many: side.many_v6(), asked: ArrayVec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Takes note of a packet that is whole, and asks for the memory of the answer.
    #[inline(always)]
    pub(super) fn note(&mut self, fields: Fields<u128>) -> Group {
        if !self.asked.last().is_some_and(|last| self.many.same(&last.fields, &fields)) {
            let tag = self.many.ask(&fields, asked_cache());
            self.asked.push(AskedV6 { fields, tag });
        }
        Group::last_of_v6(self.asked.len())
    }

    /// The policies that presumably decide.
    #[inline(never)]
    pub(super) fn presumed(&self) -> Presumed<'v> {
        let mut presumed = ArrayVec::new();
        for AskedV6 { fields, tag } in &self.asked {
            presumed.push(self.many.presume(fields, *tag, asked_cache()));
        }
        presumed
    }

    /// What the policies say in answer to one of the questions.
    #[inline]
    pub(super) fn lookup(&self, at: usize, presumed: &Presumed<'v>) -> Option<Lookup<'v>> {
        let AskedV6 { fields, tag } = self.asked.get(at)?;
        Some(self.many.lookup(fields, *tag, *presumed.get(at)?))
    }

    /// What they say in answer to the first ones: how many there are, up to one of which `goes_on` says no.
    #[inline(never)]
    pub(super) fn answer(&self, mut goes_on: impl FnMut(Lookup<'v>) -> bool) -> usize {
        let presumed = self.presumed();
        let answers = (0..self.asked.len()).map_while(|at| self.lookup(at, &presumed));
        answers.take_while(|found| goes_on(*found)).count()
    }

    /// Of how many of the first no policy says anything, so that they may pass.
    pub(super) fn free(&self) -> usize {
        self.answer(is_free)
    }
}

/// How many of the first groups of each family no policy says anything of.
pub(super) struct Free {
    v4: usize,
    v6: usize,
}

impl Free {
    /// What the answers to all questions say.
    #[inline(always)]
    pub(super) fn of(asked: &Inquiry<'_>, asked_v6: &InquiryV6<'_>) -> Free {
        Free { v4: asked.free(), v6: if asked_v6.is_empty() { 0 } else { asked_v6.free() } }
    }

    /// Whether a group is among them.
    #[inline(always)]
    pub(super) fn has(&self, group: Group) -> bool {
        group.number() < if group.is_v6() { self.v6 } else { self.v4 }
    }
}

fn is_free(found: Lookup<'_>) -> bool {
    matches!(found, Lookup::Default(DefaultAction::Accept))
}
