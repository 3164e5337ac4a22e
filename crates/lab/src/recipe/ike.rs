//! The terms on which strongSwan negotiates a recipe's tunnels.

use serde::{Deserialize, Serialize};

use super::{Recipe, RecipeError, Tunnel, value};
use crate::ike::{Auth, Ends, Responder, Terms};

/// What the two daemons of a test agree on, beside the ESP that the recipe asks for anyway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ike {
    /// IKE proposals, as strongSwan writes them.
    pub proposals: String,
    /// The pre-shared key of all tunnels. Known to every reader of the recipe, it protects nothing.
    pub secret: String,
}

impl Default for Ike {
    /// As in "Nvidia Bluefield-3 by numbers".
    fn default() -> Ike {
        Ike { proposals: "aes256-sha256-modp2048".to_owned(), secret: "TopSecret".to_owned() }
    }
}

impl Recipe {
    /// What all tunnels have in common; an error when strongSwan has no name for the ESP algorithm.
    ///
    /// # Errors
    /// [`RecipeError`] for another ESP algorithm than the one that is negotiated.
    pub fn terms(&self, responder: Responder) -> Result<Terms, RecipeError> {
        let esp = &self.esp;
        if esp.algorithm != "rfc4106(gcm(aes))" {
            let expected = "rfc4106(gcm(aes)), the one that is negotiated";
            return Err(value("algorithm", &esp.algorithm, expected));
        }
        let esn = if esp.esn { "-esn" } else { "" };
        let mut extra = vec![("replay_window", esp.replay_window.to_string())];
        if esp.per_cpu {
            extra.push(("per_cpu_sas", "yes".to_owned()));
            // What a CPU's packets ask for is asked for by the trap.
            extra.push(("start_action", "trap".to_owned()));
        }
        Ok(Terms {
            proposals: self.ike.proposals.clone(),
            esp_proposals: format!("aes{}gcm{}{esn}", esp.key_bits, esp.icv_bits),
            secret: self.ike.secret.clone(),
            auth: Auth::Psk,
            responder,
            extra,
            encap: false,
        })
    }

    /// What tells one tunnel from the next. `port` is that of its daemons, where several share a
    /// gateway.
    pub fn ends(&self, tunnel: &Tunnel, port: Option<u16>) -> Ends {
        let Tunnel { pair, own, .. } = tunnel;
        let several = self.pairs() > 1;
        let (connection, child) = match several {
            false => (format!("tunnel{own}"), format!("tnl{own}")),
            true => (format!("tunnel-{pair}-{own}"), format!("tnl-{pair}-{own}")),
        };
        Ends {
            connection,
            child,
            ids: ["ipsecgw-0".to_owned(), format!("ipsecgw-{own}")],
            endpoints: [tunnel.near_endpoint, tunnel.far_endpoint],
            selectors: [tunnel.near_selector, tunnel.far_selector],
            // The tunnels of the same number in all pairs have the same.
            shares_identities: several,
            reqid: port.map(|_| tunnel.reqid),
            port,
        }
    }
}
