//! A journal as a crash, a disk or a person may have left it. What is good must be a prefix, what it
//! says must be what a journal of the restored server says, and nothing may panic.

use control::journal::frame;
use control::xfrm::{Bytes, Entries, Places, SaId, Server, Settings, Walk};
use dataplane::ledger::Place;

/// Every SA has a place.
struct Everywhere;

impl Places for Everywhere {
    fn place(&self, id: SaId) -> Option<Place> {
        Some(Place { cell: id.0 as u32, tag: id.0.wrapping_add(1) })
    }
}

/// Takes `data` for a file, for what follows a good header, and for what a good frame holds.
pub fn journal(data: &[u8]) {
    let boot = [0; 16];
    file(data, boot);
    let mut bytes = frame::header(boot, 1).as_ref().to_vec();
    bytes.extend_from_slice(data);
    file(&bytes, boot);
    let mut whole = vec![0; frame::FRAME_HEAD_LEN];
    whole.extend_from_slice(data);
    frame::finish(&mut whole);
    let mut bytes = frame::header(boot, 1).as_ref().to_vec();
    bytes.extend_from_slice(&whole);
    file(&bytes, boot);
}

fn file(bytes: &[u8], boot: frame::BootId) {
    let mut entries = Entries::default();
    let (good, problem) = frame::read(bytes, boot, |payload| entries.add(payload).is_ok());
    assert!(good <= bytes.len());
    assert_eq!(problem.is_none(), good == bytes.len() && good > 0);
    let server = restored(&entries);

    let first = image(&server);
    let mut again = Entries::default();
    assert!(again.add(&first).is_ok(), "its own entries");
    let second = image(&restored(&again));
    assert_eq!(*first, *second, "a server that is restored twice");
}

fn restored(entries: &Entries<'_>) -> Server {
    let mut server = Server::new(Settings { cpus: 4, acquire_expires_s: 30, seed: 1 });
    let restored = server.restore(entries);
    let (sas, policies) = server.sizes();
    assert!(restored.sas <= sas && restored.policies == policies);
    assert_eq!(restored.places.len(), restored.sas);
    server
}

fn image(server: &Server) -> Bytes {
    let (mut out, mut walk) = (Bytes::reusable(0), Walk::default());
    while server.write_some(&mut walk, 7, &Everywhere, &mut out) != 0 {}
    out
}
