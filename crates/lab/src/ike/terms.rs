//! From the ends of a tunnel and the terms of a test to what both daemons are told.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Child, Connection, Party, Secret};
use crate::recipe::Net;

/// The identity of a far gateway that has one for all tunnels.
const FAR_ID: &str = "ipsecgw-1";

/// How the answering daemon finds what a tunnel may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Responder {
    /// One connection per tunnel, as published. charon compares them all for every handshake, so
    /// the cost of a handshake grows with their number.
    #[default]
    Exact,
    /// One connection for all tunnels: whoever has the key may ask for any network of the far side.
    /// The cost of answering does not depend on the number of tunnels; that of initiating does.
    Any,
}

/// How two gateways know each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// By a secret that both have, as published.
    #[default]
    Psk,
    /// By certificates of one authority, one for each identity.
    Cert,
}

/// What all tunnels of a test have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// IKE proposals.
    pub proposals: String,
    /// ESP proposals.
    pub esp_proposals: String,
    /// The pre-shared key of all tunnels. It protects a test, nothing else.
    pub secret: String,
    /// How the gateways know each other; with certificates nobody asks for `secret`.
    pub auth: Auth,
    /// How the far daemon finds tunnels.
    pub responder: Responder,
    /// More keys and values of every child.
    pub extra: Vec<(&'static str, String)>,
    /// Encapsulate in UDP always.
    pub encap: bool,
}

/// What tells one tunnel from the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    /// Name of the connection.
    pub connection: String,
    /// Name of the child.
    pub child: String,
    /// Identities of the near and the far gateway.
    pub ids: [String; 2],
    /// Endpoints, near and far.
    pub endpoints: [IpAddr; 2],
    /// Protected networks, near and far.
    pub selectors: [Net; 2],
    /// Other tunnels have the same two identities.
    pub shares_identities: bool,
    /// Several daemons share a gateway: a request id of its own keeps their tunnels apart.
    pub reqid: Option<u32>,
    /// The far daemon's port, where it is not 500.
    pub port: Option<u16>,
}

impl Terms {
    /// The connection on the near gateway, which initiates.
    pub fn near(&self, ends: &Ends) -> Connection {
        let [near, far] = &ends.endpoints;
        let is_any = self.responder == Responder::Any;
        let [near_id, far_id] = self.identities(ends);
        let party =
            |address: &IpAddr, id: &str| Party { address: address.to_string(), id: id.to_owned() };
        let mut connection = Connection {
            name: ends.connection.clone(),
            local: party(near, near_id),
            remote: party(far, far_id),
            remote_port: ends.port,
            proposals: self.proposals.clone(),
            shares_identities: ends.shares_identities || is_any,
            encap: self.encap,
            auth: self.auth,
            children: Vec::new(),
        };
        let mut extra = self.extra.clone();
        extra.extend(ends.reqid.map(|reqid| ("reqid", reqid.to_string())));
        connection.children.push(Child {
            name: ends.child.clone(),
            local_ts: ends.selectors[0].to_string(),
            remote_ts: ends.selectors[1].to_string(),
            esp_proposals: self.esp_proposals.clone(),
            extra,
        });
        connection
    }

    /// The far gateway's only connection for all tunnels of which `ends` is one; its networks are
    /// parts of `range`, to which the initiator's narrower one narrows it (RFC 7296 §2.9).
    pub fn far_any(&self, name: &str, ends: &Ends, range: Net) -> Connection {
        let mut connection = self.near(ends).mirrored();
        connection.name = name.to_owned();
        connection.local.address = "%any".to_owned();
        for child in &mut connection.children {
            child.name = name.to_owned();
            child.local_ts = range.to_string();
            // One request id for all would make them one tunnel.
            child.extra.retain(|(key, _)| *key != "reqid");
        }
        connection
    }

    /// The identities of one tunnel, near and far.
    pub fn identities<'a>(&self, ends: &'a Ends) -> [&'a str; 2] {
        [&ends.ids[0], if self.responder == Responder::Any { FAR_ID } else { &ends.ids[1] }]
    }

    /// The secret of one tunnel.
    pub fn secret(&self, ends: &Ends) -> Secret {
        Secret {
            name: ends.child.clone(),
            owners: self.identities(ends).map(str::to_owned).to_vec(),
            data: self.secret.clone(),
        }
    }
}
