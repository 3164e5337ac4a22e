//! Whatever comes in: nothing panics, tables stay consistent, and a slow, simple table agrees.

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::io::Errno;
use wire::xfrm::address::Mark;
use wire::xfrm::message::fixed_len;
use wire::xfrm::netlink::{Datagram, NLM_F_DUMP, NLM_F_REQUEST};
use wire::xfrm::number::{attr, msg};
use wire::xfrm::policy::UserpolicyInfo;
use wire::xfrm::sa::{UsersaFlush, UsersaInfo};

use super::super::{Change, Delivery};
use super::bench::*;

/// A request whose shape is right and whose values are anything.
pub(super) fn soup() -> impl Strategy<Value = Request> {
    let attribute = (0..=attr::MAX + 1, vec(any::<u8>(), 0..120));
    let kind = msg::BASE..=msg::MAX;
    (kind, any::<u16>(), vec(any::<u8>(), 300), vec(attribute, 0..6)).prop_map(
        |(kind, flags, body, attributes)| {
            let fixed = body[..fixed_len(kind).unwrap()].to_vec();
            let request = Request { fixed, attributes, ..Request::new(kind, &0u8) };
            request.flags(flags | NLM_F_REQUEST)
        },
    )
}

/// A good request with one thing changed.
pub(super) fn nearly_good() -> impl Strategy<Value = Vec<u8>> {
    let good = prop_oneof![
        (0u32..4).prop_map(new_sa),
        (0u32..4).prop_map(update_sa),
        (0u32..4).prop_map(delete_sa),
        (0u32..4).prop_map(get_sa),
        (0u8..4).prop_map(|dir| new_policy("10.2.0.1", dir)),
        (0u8..4).prop_map(|dir| policy_id(msg::DELPOLICY, "10.2.0.1", dir)),
    ];
    (good, any::<prop::sample::Index>(), any::<u8>(), any::<bool>()).prop_map(
        |(request, at, value, change)| {
            let mut bytes = request.bytes();
            let at = at.index(bytes.len());
            if change {
                bytes[at] = value;
            }
            bytes
        },
    )
}

/// Every reply and event is whole messages, and every dump ends.
fn serve(bench: &mut Bench, datagram: &[u8]) {
    let handled = bench.handle(datagram);
    for delivery in &handled.deliveries {
        let bytes: &[u8] = match delivery {
            Delivery::Reply(bytes) => bytes,
            Delivery::Event(event) => &event.bytes,
        };
        let walked: usize =
            Datagram::new(bytes).map(|(_, bytes)| bytes.len().next_multiple_of(4)).sum();
        assert_eq!(walked, bytes.len().next_multiple_of(4));
    }
    let mut dump = handled.dump;
    let mut parts = 0;
    while let Some(part) =
        dump.as_mut().and_then(|dump| bench.server.dump_next(dump, &bench.figures))
    {
        assert!(!part.is_empty());
        parts += 1;
        assert!(parts < 10_000);
    }
}

/// What the data plane would hold after all changes is what the tables hold.
fn check_changes(bench: &mut Bench, mirror: &mut (Vec<u64>, Vec<u64>)) {
    for change in bench.changes() {
        match change {
            Change::SaInstalled(record) => mirror.0.push(record.id.0),
            Change::SaUpdated(record) | Change::SaMoved(record) | Change::SaReplaySet(record) => {
                assert!(mirror.0.contains(&record.id.0));
            }
            Change::SaDying(id) => assert!(mirror.0.contains(&id.0)),
            Change::SaDeparted(record) => mirror.0.retain(|id| *id != record.id.0),
            Change::SaRemoved(id) | Change::SaDeleted(id) => {
                let at = mirror.0.iter().position(|&other| other == id.0).unwrap();
                mirror.0.remove(at);
            }
            Change::PolicyInstalled(record) => {
                mirror.1.push(record.id.0);
                // One with new templates keeps its name.
                mirror.1.sort_unstable();
            }
            Change::PolicyRemoved(id) => {
                let at = mirror.1.iter().position(|&other| other == id.0).unwrap();
                mirror.1.remove(at);
            }
            Change::DefaultsChanged(_) => {}
        }
    }
    let server = &bench.server;
    let valid = server.sad.ids().filter(|id| server.sa_record(*id).is_some()).map(|id| id.0);
    assert_eq!(valid.collect::<Vec<_>>(), mirror.0);
    assert_eq!(server.spd.policies().map(|(id, _)| id.0).collect::<Vec<_>>(), mirror.1);
    assert!(super::super::spd::consistent(&server.spd));
}

proptest! {
    #[test]
    fn anything_is_answered(
        requests in vec(prop_oneof![
            soup().prop_map(|request| request.bytes()),
            nearly_good(),
            vec(any::<u8>(), 0..400),
        ], 1..40),
        seconds in 0u64..60,
    ) {
        let mut bench = Bench::new();
        let mut mirror = Default::default();
        for request in requests {
            serve(&mut bench, &request);
            bench.tick(seconds);
            check_changes(&mut bench, &mut mirror);
        }
        let dump = Request::new(msg::GETSA, &[0u8; 0]).flags(NLM_F_REQUEST | NLM_F_DUMP);
        serve(&mut bench, &dump.bytes());
    }
}

/// One step for the server and for its twin.
#[derive(Clone, Debug)]
enum Step {
    Add(u32, u8, Mark),
    Delete(u32, u8, Mark),
    Get(u32, u8, Mark),
    Flush,
}

fn mark() -> impl Strategy<Value = Mark> {
    (0u32..3, 0u32..4).prop_map(|(v, m)| Mark { v, m })
}

fn step() -> impl Strategy<Value = Step> {
    let id = || (1u32..4, 1u8..3, mark());
    prop_oneof![
        6 => id().prop_map(|(spi, host, mark)| Step::Add(spi, host, mark)),
        3 => id().prop_map(|(spi, host, mark)| Step::Delete(spi, host, mark)),
        3 => id().prop_map(|(spi, host, mark)| Step::Get(spi, host, mark)),
        1 => Just(Step::Flush),
    ]
}

/// The SAD as a list: the newest entry that fits is the one.
#[derive(Default)]
struct SlowSad(Vec<(u32, u8, Mark)>);

impl SlowSad {
    fn find(&self, spi: u32, host: u8, mark: Mark) -> Option<usize> {
        let key = mark.v & mark.m;
        self.0
            .iter()
            .rposition(|entry| entry.0 == spi && entry.1 == host && key & entry.2.m == entry.2.v)
    }

    fn step(&mut self, step: &Step) -> Result<(), Errno> {
        match *step {
            Step::Add(spi, host, mark) => {
                if self.find(spi, host, mark).is_some() {
                    return Err(Errno::EXIST);
                }
                self.0.push((spi, host, Mark { v: mark.v & mark.m, m: mark.m }));
            }
            Step::Delete(spi, host, mark) => {
                let at = self.find(spi, host, mark).ok_or(Errno::SRCH)?;
                self.0.remove(at);
            }
            Step::Get(spi, host, mark) => {
                self.find(spi, host, mark).ok_or(Errno::SRCH)?;
            }
            Step::Flush => self.0.clear(),
        }
        Ok(())
    }
}

fn request_for(step: &Step) -> Request {
    let host = |host: u8| address(&format!("192.0.2.{host}"));
    match *step {
        Step::Add(spi, to, mark) => new_sa(spi)
            .with(attr::MARK, &mark)
            .change(|info: &mut UsersaInfo| info.id.daddr = host(to)),
        Step::Delete(spi, to, mark) => delete_sa(spi)
            .with(attr::MARK, &mark)
            .change(|id: &mut wire::xfrm::sa::UsersaId| id.daddr = host(to)),
        Step::Get(spi, to, mark) => get_sa(spi)
            .with(attr::MARK, &mark)
            .change(|id: &mut wire::xfrm::sa::UsersaId| id.daddr = host(to)),
        Step::Flush => Request::new(msg::FLUSHSA, &UsersaFlush { proto: 0 }),
    }
}

proptest! {
    #[test]
    fn a_list_of_sas_agrees(steps in vec(step(), 1..60)) {
        let mut bench = Bench::new();
        let mut twin = SlowSad::default();
        for step in steps {
            let ours = bench.send(&request_for(&step)).result().map_err(|(errno, _)| errno);
            prop_assert_eq!(ours, twin.step(&step), "{:?}", step);
            prop_assert_eq!(bench.server.sizes().0, twin.0.len());
        }
    }

    #[test]
    fn a_list_of_policies_agrees(
        steps in vec((0u8..4, 1u8..4, 0u8..3, 0u32..3, mark(), 0u32..2), 1..60),
    ) {
        let mut bench = Bench::new();
        // Selector and the rest of the key, priority, index; in the order of look-up.
        type Key = (u8, u8, Mark, u32);
        let mut twin: Vec<(Key, u32)> = Vec::new();
        for (what, host, dir, priority, mark, if_id) in steps {
            let stored = Mark { v: mark.v & mark.m, m: mark.m };
            let named = if what < 2 { stored } else { mark };
            let key = (host, dir, named, if_id);
            let at = twin.iter().position(|entry| entry.0 == key);
            let to = format!("10.2.0.{host}");
            let request = match what {
                0 | 1 => new_policy(&to, dir)
                    .change(|info: &mut UserpolicyInfo| info.priority = priority),
                2 => policy_id(msg::DELPOLICY, &to, dir),
                _ => policy_id(msg::GETPOLICY, &to, dir),
            };
            let mut request = request.with(attr::MARK, &mark).with(attr::IF_ID, &if_id);
            if what == 1 {
                request.header.kind = msg::UPDPOLICY;
            }
            let expected = match (what, at) {
                (0, Some(_)) => Err(Errno::EXIST),
                (2 | 3, None) => Err(Errno::NOENT),
                _ => Ok(()),
            };
            let ours = bench.send(&request).result().map_err(|(errno, _)| errno);
            prop_assert_eq!(ours, expected);
            match (what, at) {
                (0 | 1, Some(at)) if expected.is_ok() && twin[at].1 == priority => {}
                (0 | 1, _) if expected.is_ok() => {
                    if let Some(at) = at {
                        twin.remove(at);
                    }
                    let place = twin.iter().position(|entry| entry.1 > priority);
                    twin.insert(place.unwrap_or(twin.len()), (key, priority));
                }
                (2, Some(at)) => {
                    twin.remove(at);
                }
                _ => {}
            }
            let mut ours: Vec<_> =
                bench.server.spd.policies().map(|(_, policy)| policy.record.clone()).collect();
            ours.sort_by_key(|record| (record.priority, record.order));
            let ours: Vec<_> = ours
                .iter()
                .map(|record| {
                    let host = record.selector.daddr.0[3];
                    ((host, record.direction, record.mark, record.if_id), record.priority)
                })
                .collect();
            prop_assert_eq!(&ours, &twin);
        }
    }
}
