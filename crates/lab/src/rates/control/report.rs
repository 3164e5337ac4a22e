//! What was measured of many tunnels, as JSON and as lines.

use serde::Serialize;

use super::super::driver::Done;
use super::super::rig::Traffic;
use crate::result::Latency;

/// The version of the JSON.
pub const SCHEMA: u32 = 1;

/// Everything that was measured, and where.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `SCHEMA`.
    pub schema: u32,
    /// Of this program.
    pub version: &'static str,
    /// The CPU's name.
    pub cpu: String,
    /// When it began.
    pub measured_at: String,
    /// Tunnels: two SAs and three policies each.
    pub tunnels: u32,
    /// Tunnels whose requests were under way at a time.
    pub in_flight: u32,
    /// Tunnels whose requests shared a datagram; 0: every request had one of its own.
    pub per_datagram: u32,
    /// It was ended early.
    pub interrupted: bool,
    /// Installing all: first as asked for, then, after a flush, on an idle gateway.
    pub install: Vec<Install>,
    /// What they cost in memory.
    pub memory: Option<Growth>,
    /// Rekeying, if it was asked for.
    pub rekeying: Option<Rekeying>,
    /// Listing all SAs.
    pub listing: Option<Listing>,
    /// Deleting all tunnels, each by requests of its own.
    pub deletion: Option<Streaming>,
    /// Flushing all policies and all SAs.
    pub flush: Option<Streaming>,
    /// Seconds from SIGTERM to the gateway's end, with all tunnels installed.
    pub stop_s: Option<f64>,
}

/// One installation.
#[derive(Clone, Debug, Serialize)]
pub struct Install {
    /// Seconds from the first request to the last answer.
    pub seconds: f64,
    /// Requests, six for a tunnel.
    pub requests: u64,
    /// What the gateway forwarded meanwhile.
    pub traffic: Option<Traffic>,
}

/// The memory of a gateway at a moment, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    /// Resident memory (`VmRSS`), the ledger's file included.
    pub resident_bytes: u64,
    /// The most that it ever was (`VmHWM`).
    pub peak_bytes: u64,
    /// The journal's file, which is memory as well (tmpfs) but not the process's.
    pub journal_bytes: u64,
}

/// Memory without any tunnel and with all.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Growth {
    /// Before.
    pub empty: Size,
    /// After.
    pub full: Size,
}

/// Rekeying at an even pace: per tunnel ALLOCSPI, UPDSA, NEWSA, three UPDPOLICY, two DELSA.
#[derive(Clone, Debug, Serialize)]
pub struct Rekeying {
    /// Asked for.
    pub per_second_wanted: u32,
    /// Done.
    pub per_second: f64,
    /// From the moment when one was due to its last answer.
    pub latency: Option<Latency>,
    /// What the gateway forwarded meanwhile.
    pub traffic: Option<Traffic>,
}

/// Something large, and what others noticed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Streaming {
    /// From the request to the last answer.
    pub seconds: f64,
    /// Messages of the answer, of a listing.
    pub messages: u64,
    /// How long another client waited for its answers.
    pub others: Option<Latency>,
    /// Bytes by which the gateway's peak exceeded what it was before.
    pub grown_bytes: u64,
}

/// A listing.
pub type Listing = Streaming;

impl Install {
    /// Of an order to fill.
    pub fn new(done: &Done, traffic: Option<Traffic>) -> Install {
        Install { seconds: done.seconds, requests: done.requests, traffic }
    }
}

impl Growth {
    /// Bytes of resident memory for each of `sas` SAs, their policies included.
    pub fn resident_per_sa(&self, sas: u32) -> f64 {
        per(self.empty.resident_bytes, self.full.resident_bytes, sas)
    }

    /// Bytes of the journal for each of `sas` SAs, their policies included.
    pub fn journal_per_sa(&self, sas: u32) -> f64 {
        per(self.empty.journal_bytes, self.full.journal_bytes, sas)
    }
}

fn per(before: u64, after: u64, sas: u32) -> f64 {
    after.saturating_sub(before) as f64 / f64::from(sas.max(1))
}

impl Rekeying {
    /// Of an order to rekey.
    pub fn new(wanted: u32, done: &Done, latency: Latency, traffic: Option<Traffic>) -> Rekeying {
        let per_second = latency.samples as f64 / done.seconds.max(1e-9);
        Rekeying { per_second_wanted: wanted, per_second, latency: Some(latency), traffic }
    }
}

impl Streaming {
    /// Of an order, another client's waiting, and the sizes before and after.
    pub fn new(done: &Done, others: Option<Latency>, before: Size, after: Size) -> Streaming {
        let grown_bytes = after.peak_bytes.saturating_sub(before.peak_bytes);
        Streaming { seconds: done.seconds, messages: done.listed, others, grown_bytes }
    }
}

/// The report for people.
pub fn table(report: &Report) -> String {
    let sas = 2 * report.tunnels;
    let mut text = format!(
        "{} tunnels ({sas} SAs, {} policies), one client, {} tunnels under way at a time, {}; {}\n",
        report.tunnels,
        3 * report.tunnels,
        report.in_flight,
        datagrams(report.per_datagram),
        report.cpu
    );
    for install in &report.install {
        text += &format!(
            "installed in {:.2} s ({:.0} requests/s), {}\n",
            install.seconds,
            install.requests as f64 / install.seconds.max(1e-9),
            beside(install.traffic.as_ref())
        );
    }
    if let Some(growth) = &report.memory {
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        text += &format!(
            "resident memory {:.1} MiB empty, {:.1} MiB with all: {:.0} bytes per SA, policies and \
             ledger included; journal file {:.1} MiB: {:.0} bytes per SA\n",
            mebibytes(growth.empty.resident_bytes),
            mebibytes(growth.full.resident_bytes),
            growth.resident_per_sa(sas),
            mebibytes(growth.full.journal_bytes),
            growth.journal_per_sa(sas),
        );
    }
    if let Some(rekeying) = &report.rekeying {
        text += &format!(
            "{:.0} rekeyings per second of {} wanted, {}",
            rekeying.per_second,
            rekeying.per_second_wanted,
            beside(rekeying.traffic.as_ref())
        );
        text += &rekeying.latency.map_or_else(String::new, |latency| {
            format!(
                "; eight requests took {:.0} µs in the median, {:.0} µs at the 99th percentile, {:.0} \
                 µs at most\n",
                latency.p50_us, latency.p99_us, latency.max_us
            )
        });
    }
    for (what, streaming) in
        [("listed", &report.listing), ("deleted", &report.deletion), ("flushed", &report.flush)]
    {
        let Some(streaming) = streaming else { continue };
        text += &format!(
            "{what} in {:.2} s, {} messages, {} KiB more memory; another client waited {:.0} µs at most\n",
            streaming.seconds,
            streaming.messages,
            streaming.grown_bytes >> 10,
            streaming.others.map_or(0.0, |latency| latency.max_us),
        );
    }
    if let Some(seconds) = report.stop_s {
        text += &format!("stopped in {seconds:.2} s\n");
    }
    if report.interrupted {
        text += "interrupted; what is missing was not measured\n";
    }
    text
}

fn datagrams(tunnels: u32) -> String {
    match tunnels {
        0 => "a datagram for each request".to_owned(),
        1 => "a datagram for each".to_owned(),
        tunnels => format!("a datagram for {tunnels}"),
    }
}

fn beside(traffic: Option<&Traffic>) -> String {
    traffic.map_or_else(|| "idle workers".to_owned(), |traffic| format!("at half load: {traffic}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{AccountingRow, Side};

    #[test]
    fn memory_is_told_per_sa_and_rekeyings_per_second() {
        let size =
            |bytes| Size { resident_bytes: bytes, peak_bytes: bytes, journal_bytes: bytes / 4 };
        let growth = Growth { empty: size(4096), full: size(4096 + 20 * 2000) };
        assert_eq!((growth.resident_per_sa(20), growth.journal_per_sa(20)), (2000.0, 500.0));
        let mut histogram = crate::histogram::LatencyHistogram::new();
        (0..10).for_each(|_| histogram.record(200_000));
        let done = Done { seconds: 2.0, ..Done::default() };
        let rekeying = Rekeying::new(7, &done, histogram.latency().unwrap(), None);
        assert_eq!(rekeying.per_second, 5.0);
        let losses = vec![AccountingRow {
            place: "path".to_owned(),
            side: Side::Out,
            name: "gw0:p1 rx_ring_full".to_owned(),
            packets: 11,
        }];
        let report = Report {
            schema: SCHEMA,
            version: "0",
            cpu: "a CPU".to_owned(),
            measured_at: String::new(),
            tunnels: 10,
            in_flight: 4,
            per_datagram: 2,
            interrupted: true,
            install: vec![Install {
                seconds: 0.5,
                requests: 60,
                traffic: Some(Traffic {
                    l2_bps: 4e8,
                    lossless_l2_bps: Some(8e8),
                    loss_ratio: 0.0044,
                    losses,
                    ..Traffic::default()
                }),
            }],
            memory: Some(growth),
            rekeying: Some(rekeying),
            listing: Some(Streaming::new(&done, None, size(4096), size(8192))),
            deletion: Some(Streaming::new(&done, None, size(4096), size(4096))),
            flush: None,
            stop_s: Some(0.25),
        };
        let text = table(&report);
        for part in [
            "20 SAs, 30 policies",
            "a datagram for 2;",
            "120 requests/s), at half load: 400.00 Mbps (50 % of what is carried without loss), 0.4400 % lost (gw0:p1 rx_ring_full 11)\n",
            "2000 bytes per SA",
            "5 rekeyings per second of 7 wanted, idle workers; eight requests took",
            "listed in 2.00 s, 0 messages, 4 KiB",
            "deleted in 2.00 s, 0 messages, 0 KiB",
            "stopped in 0.25 s",
            "interrupted",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
