//! A port on capture files: packets of one file in, packets to another one out.
//!
//! Reads the classic pcap format (either byte order, micro- or nanoseconds) of Ethernet packets
//! and writes it with nanoseconds. Does not replay at the recorded times and does not know pcapng.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::frame::Frame;
use crate::port::PortCounters;
use crate::ring::Moved;
use crate::umem::Pool;

/// Magic number of a file with microseconds and of one with nanoseconds.
const MAGICS: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;
/// Longest record that is skipped over; a longer one means a damaged file.
const RECORD_LEN_MAX: u32 = 1 << 18;

/// A source file, a destination file, or both.
#[derive(Debug)]
pub struct PcapPort {
    source: Option<Source>,
    sink: Option<BufWriter<File>>,
    counters: PortCounters,
}

#[derive(Debug)]
struct Source {
    file: BufReader<File>,
    big_endian: bool,
}

impl PcapPort {
    /// Opens `source` to receive from and creates `sink` to send to. Without a source nothing
    /// arrives; without a sink what is sent is counted and forgotten.
    ///
    /// # Errors
    ///
    /// When a file cannot be opened, or the source is no pcap file of Ethernet packets.
    pub fn open(source: Option<&Path>, sink: Option<&Path>) -> io::Result<PcapPort> {
        let source = source.map(Source::open).transpose()?;
        let sink = sink.map(create).transpose()?;
        Ok(PcapPort { source, sink, counters: PortCounters::default() })
    }

    pub(crate) fn receive<S>(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<S>,
        max: usize,
        mut make: impl FnMut(Frame) -> S,
    ) -> Moved {
        let mut moved = Moved::default();
        while moved.packets < max
            && let Some(source) = &mut self.source
        {
            // A file can wait: without a free frame nothing is read, so nothing is lost.
            let Some(mut frame) = pool.take() else { break };
            match source.read(&mut frame) {
                Ok(Record::Packet) => {
                    moved += Moved { packets: 1, bytes: frame.len() as u64 };
                    into.push(make(frame));
                    continue;
                }
                Ok(Record::Oversize) => self.counters.rx_oversize += 1,
                Ok(Record::Cut) => self.counters.rx_invalid += 1,
                Ok(Record::End) => self.source = None,
                Err(_) => {
                    self.counters.rx_invalid += 1;
                    self.source = None;
                }
            }
            pool.give(frame);
        }
        self.counters.count_received(moved);
        moved
    }

    pub(crate) fn send(&mut self, frames: &mut Vec<Frame>, pool: &mut Pool) -> usize {
        let count = frames.len();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for frame in frames.drain(..) {
            let len = frame.len() as u32;
            let head = [now.as_secs() as u32, now.subsec_nanos(), len, len];
            let written = match &mut self.sink {
                Some(sink) => sink
                    .write_all(head.map(u32::to_ne_bytes).as_flattened())
                    .and_then(|()| sink.write_all(frame.bytes())),
                None => Ok(()),
            };
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += u64::from(len);
            self.counters.tx_dropped += u64::from(written.is_err());
            pool.give(frame);
        }
        count
    }

    pub(crate) fn flush(&mut self) -> usize {
        if let Some(sink) = &mut self.sink {
            // A full disk shows at the next write, which counts its packet as lost.
            let _ = sink.flush();
        }
        0
    }

    pub(crate) fn counters(&self) -> PortCounters {
        self.counters
    }
}

fn create(path: &Path) -> io::Result<BufWriter<File>> {
    let mut file = BufWriter::new(File::create(path)?);
    // Version 2.4, no time zone, no accuracy, snapshot length.
    let version = if cfg!(target_endian = "little") { 4 << 16 | 2 } else { 2 << 16 | 4 };
    let head = [MAGICS[1], version, 0, 0, 0xffff, ETHERNET];
    file.write_all(head.map(u32::to_ne_bytes).as_flattened())?;
    Ok(file)
}

/// What the next record of the file was.
enum Record {
    Packet,
    Oversize,
    Cut,
    End,
}

impl Source {
    fn open(path: &Path) -> io::Result<Source> {
        let mut file = BufReader::new(File::open(path)?);
        let mut head = [0; 24];
        file.read_exact(&mut head)?;
        let magic = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let big_endian = MAGICS.contains(&magic.swap_bytes());
        let source = Source { file, big_endian };
        let link = source.number([head[20], head[21], head[22], head[23]]);
        // The upper bits of the link type tell the length of a checksum at the end: none here.
        if !(big_endian || MAGICS.contains(&magic)) || link != ETHERNET {
            let message = format!("{}: not a pcap file of Ethernet packets", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(source)
    }

    fn number(&self, bytes: [u8; 4]) -> u32 {
        if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    fn read(&mut self, frame: &mut Frame) -> io::Result<Record> {
        let mut head = [[0; 4]; 4];
        if self.file.fill_buf()?.is_empty() {
            return Ok(Record::End);
        }
        self.file.read_exact(head.as_flattened_mut())?;
        let (captured, original) = (self.number(head[2]), self.number(head[3]));
        if captured > RECORD_LEN_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let room = if captured == original { frame.push_back(captured as usize) } else { None };
        if let Some(room) = room {
            self.file.read_exact(room)?;
            return Ok(Record::Packet);
        }
        io::copy(&mut (&mut self.file).take(u64::from(captured)), &mut io::sink())?;
        Ok(if captured == original { Record::Oversize } else { Record::Cut })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::identity;

    use super::*;
    use crate::Umem;

    #[test]
    fn what_is_written_is_read_again_and_nothing_is_lost_unnamed() {
        let path = std::env::temp_dir().join(format!("xsk-pcap-{}.pcap", std::process::id()));
        let umem = Umem::new(4, 2048, false).unwrap();
        let mut pool = umem.pool(0..4);
        let mut port = PcapPort::open(None, Some(&path)).unwrap();
        for mark in 1..=6u8 {
            let mut frame = pool.take().unwrap();
            frame.push_back(usize::from(mark) * 100).unwrap().fill(mark);
            assert_eq!(port.send(&mut vec![frame], &mut pool), 1);
        }
        port.flush();
        assert_eq!((port.counters().tx_packets, port.counters().tx_bytes), (6, 2100));

        // A record longer than a chunk, one that was cut by the capture, one that ends too early.
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        for (captured, original, present) in [(2000u32, 2000u32, 2000), (64, 1500, 64), (60, 60, 7)]
        {
            let head = [0, 0, captured, original].map(u32::to_ne_bytes);
            file.write_all(head.as_flattened()).unwrap();
            file.write_all(&vec![7; present]).unwrap();
        }
        let mut port = PcapPort::open(Some(&path), None).unwrap();
        let mut batch = Vec::new();
        assert_eq!(port.receive(&mut pool, &mut batch, 3, identity).packets, 3);
        assert_eq!(
            port.receive(&mut pool, &mut batch, 99, identity).packets,
            1,
            "four frames in the pool"
        );
        batch.drain(..2).for_each(|frame| pool.give(frame));
        assert_eq!(port.receive(&mut pool, &mut batch, 99, identity).packets, 2);
        batch.drain(..2).for_each(|frame| pool.give(frame));
        assert_eq!(batch[1].bytes(), [6; 600]);
        assert_eq!(port.receive(&mut pool, &mut batch, 99, identity).packets, 0);
        let counters = port.counters();
        assert_eq!((counters.rx_packets, counters.rx_bytes), (6, 2100));
        assert_eq!((counters.rx_oversize, counters.rx_invalid), (1, 2));
        assert_eq!(pool.free(), 2);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_other_byte_order_is_read_and_other_files_are_refused() {
        let path = std::env::temp_dir().join(format!("xsk-swapped-{}.pcap", std::process::id()));
        let mut pool = Umem::new(1, 2048, false).unwrap().pool(0..1);
        let numbers = [MAGICS[0], 0x0002_0004, 0, 0, 0xffff, ETHERNET, 1, 2, 4, 4, 0xaabb_ccdd];
        std::fs::write(&path, numbers.map(u32::to_be_bytes).as_flattened()).unwrap();
        let mut port = PcapPort::open(Some(&path), None).unwrap();
        let mut batch = Vec::new();
        assert_eq!(port.receive(&mut pool, &mut batch, 9, identity).packets, 1);
        assert_eq!(batch[0].bytes(), [0xaa, 0xbb, 0xcc, 0xdd]);
        for (at, wrong) in [(0, 0x0a0d_0d0au32), (5, 101)] {
            let mut numbers = numbers;
            numbers[at] = wrong;
            std::fs::write(&path, numbers.map(u32::to_be_bytes).as_flattened()).unwrap();
            assert!(PcapPort::open(Some(&path), None).is_err());
        }
        std::fs::remove_file(&path).unwrap();
    }
}
