//! Requests to the XFRM server, as any program with the right to connect may send them. Answers
//! must be whole messages, dumps must end, the changes for the data plane must add up, and an SA
//! that is shown must be one that can be installed (IKE daemons move SAs that way).

use std::collections::BTreeSet;

use control::xfrm::{Bytes, Change, Client, Delivery, Dump, Handled, Server, Settings};
use wire::xfrm::netlink::{NLM_F_DUMP, NLM_F_REQUEST, NLMSG_ERROR};
use wire::xfrm::number::{attr, msg};
use wire::xfrm::{Builder, Datagram, Header, Message};

const NOW: u64 = 1_700_000_000;

/// `EEXIST`.
const EEXIST: i32 = 17;

/// More parts than a datagram's worth of SAs can fill.
const PARTS_MAX: usize = 1000;

/// Takes `data` for one datagram of requests.
pub fn netlink(data: &[u8]) {
    let settings = Settings { cpus: 4, acquire_expires_s: 30, seed: 1 };
    let mut server = Server::new(settings);
    let mut known = Known::default();
    let client = Client { port: 9, ext_ack: true, ..Client::default() };
    let handled = server.handle(&client, data, NOW, &());
    let shown = collect(&server, handled);
    shown.iter().for_each(|bytes| whole(bytes));
    known.apply(server.take_changes());

    let shown = everything(&mut server, &client);
    // NEWAE may set numbers that no SA can start with.
    if !Datagram::new(data).any(|(header, _)| header.kind == msg::NEWAE) {
        let mut other = Server::new(settings);
        shown.iter().for_each(|bytes| reinstall(&mut other, &client, bytes));
    }
    for seconds in [1, 29, 30, 1000, u32::MAX.into()] {
        let deliveries = server.tick(NOW + seconds, &());
        for delivery in deliveries {
            let Delivery::Event(event) = delivery else { panic!("a timer asked nothing") };
            whole(&event.bytes);
        }
        known.apply(server.take_changes());
    }
    assert!(known.sas.len() + known.policies.len() <= server.sizes().0 + server.sizes().1);
}

/// What the data plane holds.
#[derive(Default)]
struct Known {
    sas: BTreeSet<u64>,
    policies: BTreeSet<u64>,
}

impl Known {
    fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::SaInstalled(record) => assert!(self.sas.insert(record.id.0)),
                Change::SaUpdated(record)
                | Change::SaMoved(record)
                | Change::SaReplaySet(record) => {
                    assert!(self.sas.contains(&record.id.0));
                }
                Change::SaDying(id) => assert!(self.sas.contains(&id.0)),
                Change::SaRemoved(id) | Change::SaDeleted(id) => assert!(self.sas.remove(&id.0)),
                Change::SaDeparted(record) => assert!(self.sas.remove(&record.id.0)),
                Change::PolicyInstalled(record) => assert!(self.policies.insert(record.id.0)),
                Change::PolicyRemoved(id) => assert!(self.policies.remove(&id.0)),
                Change::DefaultsChanged(_) => {}
            }
        }
    }
}

/// All messages of one request, its dump included.
fn collect(server: &Server, handled: Handled) -> Vec<Bytes> {
    let mut all: Vec<Bytes> = handled
        .deliveries
        .into_iter()
        .map(|delivery| match delivery {
            Delivery::Reply(bytes) => bytes,
            Delivery::Event(event) => Bytes::clone(&event.bytes),
        })
        .collect();
    let mut dump: Option<Dump> = handled.dump;
    while let Some(part) = dump.as_mut().and_then(|dump| server.dump_next(dump, &())) {
        all.push(part);
        assert!(all.len() < PARTS_MAX, "a dump that does not end");
    }
    all
}

/// A dump of all SAs and one of all policies.
fn everything(server: &mut Server, client: &Client) -> Vec<Bytes> {
    let mut all = Vec::new();
    for kind in [msg::GETSA, msg::GETPOLICY] {
        let mut request = Vec::new();
        let flags = NLM_F_REQUEST | NLM_F_DUMP;
        Builder::new(&mut request, Header { kind, flags, ..Header::default() }).finish();
        let handled = server.handle(client, &request, NOW, &());
        all.extend(collect(server, handled));
    }
    all
}

fn whole(bytes: &[u8]) {
    let walked: usize =
        Datagram::new(bytes).map(|(_, message)| message.len().next_multiple_of(4)).sum();
    assert_eq!(walked, bytes.len().next_multiple_of(4));
}

/// Sends what a dump showed as requests. SAs without a key are only reserved.
fn reinstall(server: &mut Server, client: &Client, part: &[u8]) {
    for (header, bytes) in Datagram::new(part) {
        let fixed = wire::xfrm::message::fixed_len(header.kind).unwrap_or_default();
        let Some(message) = Message::new(header, bytes, fixed) else { panic!("a short entry") };
        let has_key = message.attributes().any(|attribute| attribute.kind == attr::ALG_AEAD);
        if header.kind == msg::NEWSA && !has_key || header.kind < msg::BASE {
            continue;
        }
        let mut request = bytes.to_vec();
        request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        for delivery in server.handle(client, &request, NOW, &()).deliveries {
            let Delivery::Reply(reply) = delivery else { continue };
            // Whether marks overlap depends on the order of installation.
            let taken = (-EEXIST).to_ne_bytes();
            let refused = Datagram::new(&reply)
                .any(|(header, error)| header.kind == NLMSG_ERROR && error[16..20] != taken);
            assert!(!refused, "{bytes:02x?} is refused: {:02x?}", &reply[..]);
        }
    }
}
