//! Which SAs the slots of templates take.

use super::*;

/// The SPI of the SA between the ends that packets of an `if_id` take in transport mode.
fn in_transport_mode(gateway: &Fixture, if_id: u32) -> Option<u32> {
    let ends = Ends { source: WEST, destination: EAST, if_id, reqid: 7, spi: 0 };
    let slot = gateway.view.transport.get(&ends)?;
    gateway.view.bundles.get(*slot).map(|sa| sa.config().spi)
}

#[test]
fn in_transport_mode_each_if_id_has_its_own_sas() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    let five = 5u32.to_ne_bytes();
    let of_five: &[(u16, &[u8])] = &[(attr::IF_ID, &five)];
    gateway.send_sa(msg::NEWSA, 0x101, 7, EAST, mode::TRANSPORT, of_five);
    assert_eq!([0, 5].map(|if_id| in_transport_mode(&gateway, if_id)), [None, Some(0x101)]);
    gateway.add_sa_of_mode(0x102, 7, mode::TRANSPORT);
    assert_eq!([0, 5].map(|if_id| in_transport_mode(&gateway, if_id)), [Some(0x102), Some(0x101)]);
    gateway.delete_sa(0x102);
    assert_eq!([0, 5].map(|if_id| in_transport_mode(&gateway, if_id)), [None, Some(0x101)]);
    gateway.delete_sa(0x101);
    assert!(gateway.view.transport.is_empty() && gateway.tables.slots.numbers().next().is_none());
}

#[test]
fn a_template_without_a_source_takes_the_newest_sa_to_its_far_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    let open = UserTmpl { saddr: IpAddr::from([0; 4]).into(), ..template(7) };
    let add_policy = |gateway: &mut Fixture| {
        gateway.send(msg::NEWPOLICY, &policy(action::ALLOW), &[(attr::TMPL, open.as_bytes())]);
    };
    gateway.add_sa(0x101, 7);
    // Neither of another reqid, nor of another mode or far end.
    gateway.add_sa(0x102, 8);
    gateway.add_sa_of_mode(0x103, 7, mode::TRANSPORT);
    gateway.delete_sa(0x103);
    gateway.send_sa(msg::NEWSA, 0x104, 7, WEST, mode::TUNNEL, &[]);
    add_policy(&mut gateway);
    assert_eq!(gateway.chosen(), Some(0x101), "it was there before");
    gateway.add_sa(0x105, 7);
    assert_eq!(gateway.chosen(), Some(0x105));
    gateway.delete_sa(0x105);
    assert_eq!(gateway.chosen(), Some(0x101));
    gateway.delete_sa(0x101);
    assert_eq!(gateway.chosen(), None);
    gateway.add_sa(0x106, 7);
    assert_eq!(gateway.chosen(), Some(0x106));
    gateway.send(msg::DELPOLICY, &policy_id(), &[]);
    assert!(gateway.tables.slots.numbers().next().is_none());
    // Nothing is left of the policy that another would find.
    gateway.delete_sa(0x106);
    add_policy(&mut gateway);
    assert_eq!(gateway.chosen(), None);
}
