//! The terms on which strongSwan negotiates a recipe's tunnels.

use serde::{Deserialize, Serialize};

use super::{Recipe, RecipeError, Tunnel, value};
use crate::ike::{Ends, Responder, Terms};

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
    pub fn terms(&self, responder: Responder) -> Result<Terms, RecipeError> {
        let esp = &self.esp;
        if esp.algorithm != "rfc4106(gcm(aes))" {
            let expected = "rfc4106(gcm(aes)), the one that is negotiated";
            return Err(value("algorithm", &esp.algorithm, expected));
        }
        let esn = if esp.esn { "-esn" } else { "" };
        Ok(Terms {
            proposals: self.ike.proposals.clone(),
            esp_proposals: format!("aes{}gcm{}{esn}", esp.key_bits, esp.icv_bits),
            secret: self.ike.secret.clone(),
            responder,
            extra: vec![("replay_window", esp.replay_window.to_string())],
            encap: false,
        })
    }

    /// What tells one tunnel from the next. `port` is that of its daemons, where several share a
    /// gateway.
    pub fn ends(&self, tunnel: &Tunnel, port: Option<u16>) -> Ends {
        let number = tunnel.number;
        Ends {
            connection: format!("tunnel{number}"),
            child: format!("tnl{number}"),
            ids: ["ipsecgw-0".to_owned(), format!("ipsecgw-{number}")],
            endpoints: [tunnel.near_endpoint, tunnel.far_endpoint],
            selectors: [tunnel.near_selector, tunnel.far_selector],
            shares_identities: false,
            reqid: port.map(|_| tunnel.reqid),
            port,
        }
    }
}
