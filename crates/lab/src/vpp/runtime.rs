//! What VPP's nodes took, as its `show runtime` tells it.

/// What VPP calls its generator's source.
const SOURCE: &str = "pg-input";

/// Why the figures of a moment say nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoFigure {
    /// The generator sent nothing, or the text is another.
    #[error("VPP's packet generator sent nothing")]
    Silence,
    /// Packets went where they should not.
    #[error("VPP lost packets: of {sent} only {left} left by {sink}")]
    Lost {
        /// What the generator sent.
        sent: u64,
        /// What came out.
        left: u64,
        /// The node that they should leave by.
        sink: String,
    },
}

/// One line.
struct Node<'t> {
    name: &'t str,
    packets: u64,
    cycles: f64,
}

/// Cycles per packet that the first worker's nodes took together, but for the generator's source and for `sink`, the
/// node that takes packets from the last interface.
///
/// # Errors
/// [`NoFigure`] where nothing was sent, or what was sent did not come out.
pub fn cycles_per_packet(text: &str, sink: &str) -> Result<f64, NoFigure> {
    let nodes: Vec<Node<'_>> = worker(text).lines().filter_map(node).collect();
    let packets = |name: &str| {
        nodes.iter().filter(|node| node.name == name).map(|node| node.packets).sum::<u64>()
    };
    let (sent, left) = (packets(SOURCE), packets(sink));
    if sent == 0 {
        return Err(NoFigure::Silence);
    }
    // A turn's packets are between both at any moment.
    if left < sent - sent / 100 {
        return Err(NoFigure::Lost { sent, left, sink: sink.to_owned() });
    }
    let path = nodes.iter().filter(|node| node.name != SOURCE && node.name != sink);
    Ok(path.map(|node| node.packets as f64 * node.cycles).sum::<f64>() / sent as f64)
}

/// The part about the first worker.
fn worker(text: &str) -> &str {
    text.split_once("\nThread 1 ").map_or("", |(_, rest)| match rest.split_once("\nThread ") {
        Some((first, _)) => first,
        None => rest,
    })
}

/// Name, state (which may have several words), calls, vectors, suspends, clocks, vectors per call.
fn node(line: &str) -> Option<Node<'_>> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let mut last = words.rev();
    let _per_call: f64 = last.next()?.parse().ok()?;
    let cycles = last.next()?.parse().ok()?;
    let _suspends: u64 = last.next()?.parse().ok()?;
    let packets = last.next()?.parse().ok()?;
    Some(Node { name, packets, cycles })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As VPP 26.10-rc prints it.
    const TEXT: &str = "\
Thread 0 vpp_main (lcore 0)
Time .3, 10.000000 sec internal node vector rate 0.00 loops/sec 1034992.90
  vector rates in 0.0000e0, out 0.0000e0, drop 0.0000e0, punt 0.0000e0
             Name                 State         Calls          Vectors        Suspends      Packet-Clocks   Vectors/Call  
ip6-ra-process                 \"any wait\"                0               0               1          1.58e4            0.00
pg-input                         polling                 1            1000               0          9.00e9          256.00
---------------
Thread 1 vpp_wk_0 (lcore 1)
Time .3, 10.000000 sec internal node vector rate 256.00 loops/sec 31183.18
  vector rates in 4.7618e6, out 4.7618e6, drop 0.0000e0, punt 0.0000e0
             Name                 State         Calls          Vectors        Suspends      Packet-Clocks   Vectors/Call  
adj-midchain-tx                  active               4707         1204992               0          1.41e1          256.00
esp4-encrypt-tun                 active               4707         1204992               0          2.18e2          256.00
ip6-mld-process                \"any wait\"                0               0               1          4.59e3            0.00
pg-input                         polling              4707         1204992               0          5.86e1          256.00
pg1-output                       active               4707         1204992               0          6.96e0          256.00
pg1-tx                           active               4707         1204992               0          1.70e1          256.00
";

    #[test]
    fn the_generator_is_none_of_the_path() {
        let cycles = cycles_per_packet(TEXT, "pg1-tx").unwrap();
        assert!((cycles - (14.1 + 218.0 + 6.96)).abs() < 1e-9, "{cycles}");
    }

    #[test]
    fn a_node_that_half_of_the_packets_take_counts_half() {
        let text = TEXT.replace(
            "pg1-output                       active               4707         1204992",
            "pg1-output                       active               4707          602496",
        );
        let cycles = cycles_per_packet(&text, "pg1-tx").unwrap();
        assert!((cycles - (14.1 + 218.0 + 3.48)).abs() < 1e-9, "{cycles}");
    }

    #[test]
    fn packets_that_do_not_come_out_are_no_figure() {
        assert_eq!(
            cycles_per_packet(TEXT, "pg2-tx"),
            Err(NoFigure::Lost { sent: 1_204_992, left: 0, sink: "pg2-tx".to_owned() })
        );
        for text in ["", "Thread 1 vpp_wk_0\n", &TEXT.replace("1204992", "0")] {
            assert_eq!(cycles_per_packet(text, "pg1-tx"), Err(NoFigure::Silence));
        }
    }

    #[test]
    fn another_workers_nodes_are_not_counted() {
        let text = format!(
            "{TEXT}---------------\n{}",
            TEXT[TEXT.find("Thread 1").unwrap()..].replace("Thread 1 ", "Thread 2 ")
        );
        assert_eq!(cycles_per_packet(&text, "pg1-tx"), cycles_per_packet(TEXT, "pg1-tx"));
    }
}
