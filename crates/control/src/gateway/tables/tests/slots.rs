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
