//! What an SA may carry, in a byte.
//!
//! Whoever installs an SA without a selector gets one for the family of its addresses, unless he asks for both
//! (`XFRM_STATE_AF_UNSPEC`, as strongSwan does). A selector of that kind takes no memory, and no look-up.

use crate::prefix::Family;
use crate::selector::Selector;

/// What an SA may carry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Carries {
    Everything,
    All(Family),
    /// What a selector says that is kept elsewhere.
    Selected,
}

impl Carries {
    pub(super) fn of(selector: Option<&Selector>) -> Carries {
        let Some(selector) = selector else { return Carries::Everything };
        let family = selector.family();
        if *selector == Selector::any(family) { Carries::All(family) } else { Carries::Selected }
    }

    /// The selector, if there is one and it is not kept elsewhere.
    #[inline]
    pub(super) fn selector(self) -> Option<&'static Selector> {
        static ALL: [Selector; 2] = [Selector::any(Family::V4), Selector::any(Family::V6)];
        match self {
            Carries::All(family) => Some(&ALL[family.index()]),
            Carries::Everything | Carries::Selected => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::Prefix;

    #[test]
    fn a_selector_of_a_family_is_known_without_being_kept() {
        assert!(Carries::of(None) == Carries::Everything);
        for family in [Family::V4, Family::V6] {
            let all = Selector::any(family);
            assert_eq!(Carries::of(Some(&all)).selector(), Some(&all));
            let tcp = Selector { protocol: 6, ..all };
            let host = Prefix::new(all.source.address(), 32).unwrap();
            for other in [tcp, Selector { source: host, ..all }] {
                assert!(Carries::of(Some(&other)) == Carries::Selected);
            }
        }
    }
}
