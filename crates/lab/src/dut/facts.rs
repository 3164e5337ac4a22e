//! What a gateway says about itself, read from the JSON that `peregrine show` prints.
//!
//! Only the fields that the accounts need; others may come and go.

use std::collections::BTreeMap;

use serde_json::Value;

/// One gateway's counters at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayFacts {
    /// The gateway's name in the accounts.
    pub name: String,
    /// Its ports.
    pub ports: Vec<PortFacts>,
    /// Packets by the name of their end.
    pub verdicts: BTreeMap<String, Verdict>,
}

/// Packets that ended in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// How many.
    pub packets: u64,
    /// Whether that is a loss.
    pub is_loss: bool,
}

/// One port's counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortFacts {
    /// The interface.
    pub interface: String,
    /// Packets that workers received.
    pub received: u64,
    /// Packets lost on arrival (`rx_…`) and on sending (`tx_…`), by name.
    pub losses: BTreeMap<String, u64>,
    /// Packets for a worker that the steering program itself dropped, by name.
    pub steering_drops: BTreeMap<String, u64>,
}

impl GatewayFacts {
    /// Reads the answers to `show ports` and `show drops`.
    pub fn read(name: &str, ports: &Value, drops: &Value) -> Option<GatewayFacts> {
        let ports: Option<Vec<PortFacts>> = ports.as_array()?.iter().map(read_port).collect();
        let verdicts: Option<BTreeMap<String, Verdict>> = drops
            .as_array()?
            .iter()
            .map(|drop| {
                let verdict =
                    Verdict { packets: drop["count"].as_u64()?, is_loss: drop["loss"].as_bool()? };
                Some((drop["name"].as_str()?.to_owned(), verdict))
            })
            .collect();
        Some(GatewayFacts { name: name.to_owned(), ports: ports?, verdicts: verdicts? })
    }

    /// Whether every packet received has a verdict: nothing is under way, and both answers are of one
    /// moment. A gateway does not wait long for a worker that the machine keeps from running; it
    /// answers with what that worker wrote down last.
    pub fn is_settled(&self) -> bool {
        let received: u64 = self.ports.iter().map(|port| port.received).sum();
        let named: u64 = self.verdicts.values().map(|verdict| verdict.packets).sum();
        received == named
    }

    /// The losses with a count above zero, in words.
    pub fn losses_in_words(&self) -> String {
        let verdicts = self
            .verdicts
            .iter()
            .filter(|(_, verdict)| verdict.is_loss)
            .map(|(name, verdict)| (name.clone(), verdict.packets));
        let ports = self.ports.iter().flat_map(|port| {
            let all = port.losses.iter().chain(&port.steering_drops);
            all.map(|(name, &packets)| (format!("{} {name}", port.interface), packets))
        });
        let words: Vec<String> = verdicts
            .chain(ports)
            .filter(|(_, packets)| *packets > 0)
            .map(|(name, packets)| format!("{name} {packets}"))
            .collect();
        let received: u64 = self.ports.iter().map(|port| port.received).sum();
        let losses = if words.is_empty() { "none lost".to_owned() } else { words.join(", ") };
        format!("{}: {received} packets received, {losses}", self.name)
    }
}

fn read_port(port: &Value) -> Option<PortFacts> {
    let counts = |list: &Value| -> Option<BTreeMap<String, u64>> {
        list.as_array()?
            .iter()
            .map(|one| Some((one["name"].as_str()?.to_owned(), one["count"].as_u64()?)))
            .collect()
    };
    let mut steering_drops = counts(&port["steering"]).unwrap_or_default();
    steering_drops.retain(|name, _| name.starts_with("drop_"));
    Some(PortFacts {
        interface: port["interface"].as_str()?.to_owned(),
        received: port["rx_packets"].as_u64()?,
        losses: counts(&port["losses"])?,
        steering_drops,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn facts_are_read_from_what_show_prints() {
        let ports = json!([{
            "name": "red", "interface": "p1", "rx_packets": 7, "tx_packets": 3,
            "losses": [{ "name": "rx_ring_full", "count": 2, "description": "" }],
            "steering": [
                { "name": "pass_not_ip", "count": 9, "description": "" },
                { "name": "drop_no_socket", "count": 1, "description": "" },
            ],
        }]);
        let drops = json!([
            { "name": "sealed", "count": 5, "loss": false },
            { "name": "no_sa", "count": 2, "loss": true },
        ]);
        let facts = GatewayFacts::read("gw0", &ports, &drops).unwrap();
        assert_eq!(facts.ports[0].received, 7);
        assert_eq!(facts.ports[0].losses["rx_ring_full"], 2);
        assert_eq!(facts.ports[0].steering_drops.len(), 1);
        assert!(facts.verdicts["no_sa"].is_loss && !facts.verdicts["sealed"].is_loss);
        assert_eq!(
            facts.losses_in_words(),
            "gw0: 7 packets received, no_sa 2, p1 rx_ring_full 2, p1 drop_no_socket 1"
        );
        let mut stale = facts.clone();
        stale.ports[0].received = 0;
        assert!(facts.is_settled() && !stale.is_settled());
    }

    #[test]
    fn an_answer_without_the_fields_is_no_answer() {
        assert_eq!(GatewayFacts::read("gw0", &json!([{ "interface": "p1" }]), &json!([])), None);
        assert_eq!(GatewayFacts::read("gw0", &json!({}), &json!([])), None);
    }
}
