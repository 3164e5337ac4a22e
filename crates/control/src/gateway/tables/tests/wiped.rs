//! Once an SA is gone, its key is nowhere in the memory of the process: not where it was stored, nor in
//! any of the copies that were made on the way.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::*;
use zeroize::Zeroizing;

/// Bytes of a key without its salt.
const KEY_BYTES: usize = 32;
/// Read at a time; what begins in one piece and ends in the next is found in the next.
const PIECE: usize = 1 << 20;

/// The key's byte at a place. The key itself lies nowhere but where the test put it.
fn key_byte(at: usize) -> u8 {
    (at as u8).wrapping_mul(59).wrapping_add(std::hint::black_box(113))
}

/// How often the key is in the process's own writable memory, files and stacks left out.
fn copies() -> usize {
    let memory = File::open("/proc/self/mem").unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut piece = vec![0u8; PIECE + KEY_BYTES];
    let mut found = 0;
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_anonymous = words.len() == 5 || words.get(5) == Some(&"[heap]");
        if !words[1].starts_with("rw") || !is_anonymous {
            continue;
        }
        let (start, end) = words[0].split_once('-').unwrap();
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        for at in (start..end).step_by(PIECE) {
            let len = piece.len().min((end - at) as usize);
            // What another thread's allocator gave back meanwhile cannot be read.
            if memory.read_exact_at(&mut piece[..len], at).is_ok() {
                let is_key = |window: &[u8]| (0..KEY_BYTES).all(|at| window[at] == key_byte(at));
                found += piece[..len].windows(KEY_BYTES).filter(|window| is_key(window)).count();
            }
            // A copy in here is not one of theirs.
            piece.fill(0);
            std::hint::black_box(&piece);
        }
    }
    found
}

/// The request for an SA with the key, in memory that is wiped.
fn request(spi: u32) -> Zeroizing<Vec<u8>> {
    let mut info = UsersaInfo {
        saddr: WEST.into(),
        lft: LifetimeConfig::UNLIMITED,
        reqid: 7,
        family: AF_INET,
        mode: mode::TUNNEL,
        ..UsersaInfo::default()
    };
    info.id.daddr = EAST.into();
    info.id.spi = Be32::new(spi);
    info.id.proto = IPPROTO_ESP;
    let key_len = 8 * (KEY_BYTES as u32 + 4);
    let head = AlgorithmAead { name: Name::new("rfc4106(gcm(aes))"), key_len, icv_len: 128 };
    let mut key = Zeroizing::new(vec![0; KEY_BYTES + 4]);
    (0..KEY_BYTES).for_each(|at| key[at] = key_byte(at));
    let header = Header { kind: msg::NEWSA, flags: NLM_F_REQUEST, seq: 1, ..Header::default() };
    let mut bytes = Zeroizing::new(Vec::with_capacity(1024));
    let message = Builder::new(&mut bytes, header).fixed(&info);
    message.attribute_parts(attr::ALG_AEAD, &[head.as_bytes(), &key]).finish();
    bytes
}

#[test]
fn the_key_of_an_sa_that_is_gone_is_nowhere() {
    let engines = Engine::ALL.map(|engine| Engine::select(Some(engine.name())).ok());
    for engine in engines.into_iter().flatten() {
        let directory = tempfile::tempdir().unwrap();
        let mut gateway = Fixture::start(directory.path());
        gateway.tables.engine = engine;
        assert_eq!(copies(), 0);
        for spi in [0x101, 0x102] {
            let bytes = request(spi);
            let handled =
                gateway.server.handle(&Client::default(), &bytes, 1_700_000_000, &gateway.tables);
            assert!(handled.deliveries.is_empty());
            let changes = gateway.server.take_changes();
            gateway.tables.apply(&changes, &mut gateway.view).unwrap();
        }
        assert!(copies() >= 2, "{engine:?}: what is installed is found");
        // Asked for, changed, and written for the journal: copies of copies.
        let id = gateway.name(0x101);
        drop(gateway.server.sa_record(id));
        gateway.send(msg::GETAE, &AeventId { sa_id: sa_name(0x101), ..Default::default() }, &[]);
        let mut written = crate::xfrm::Bytes::reusable(16);
        assert!(gateway.server.write_touched(&gateway.tables, &mut written) > 0);
        drop(written);
        gateway.delete_sa(0x102);
        assert!(copies() >= 1, "{engine:?}: the other is still there");
        gateway.delete_sa(0x101);
        gateway.end_all_departures();
        gateway.tables.departed = Departed::default();
        assert_eq!(copies(), 0, "{engine:?}");
    }
}
