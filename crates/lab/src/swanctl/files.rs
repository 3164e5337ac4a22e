//! The files of a plan: `swanctl` and `strongswan.conf` per daemon, `ip -batch` per host, and the
//! plan itself as JSON and CSV.
//!
//! ```text
//!   README.md  plan.json  tunnels.csv
//!   gw0/  ip.batch  sysctl.conf
//!         charon-00/  strongswan.conf  swanctl.conf ── includes ─→ conf.d/
//!                     conf.d/  connections-001.conf …  secrets-001.conf … (0600)
//!                     x509ca/ca.pem  x509/ID.pem …  private/ID.pem … (0600): with certificates
//! ```
//!
//! No file holds more than some hundred connections, and no daemon more than it can serve.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;
use thiserror::Error;

use super::certificates::{Authority, CertificateError};
use super::network::{hosts, sysctl};
use super::plan::{Kind, Plan, Planned};
use crate::ike::{Auth, Connection, Responder, Secret, Settings, Text};

/// Connections per file: a second's work for the parser, whose time grows with the square.
const FILE_CONNECTIONS: usize = 500;
/// Version of `plan.json` and `tunnels.csv`.
const SCHEMA: u32 = 1;

/// One file of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Where, below the plan's folder.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
    /// It holds secrets: only its owner may read it.
    pub is_secret: bool,
}

/// Why the files are not there.
#[derive(Debug, Error)]
pub enum WriteError {
    /// Files of an earlier plan would be mixed with those of this one.
    #[error("{0} is not empty; name another folder, or remove it")]
    NotEmpty(PathBuf),
    /// The system said no.
    #[error("writing {path}: {source}")]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
}

/// All files of a plan. With certificates, they are other ones each time.
///
/// # Errors
/// [`CertificateError`] if certificates are asked for and cannot be made.
pub fn files(plan: &Plan) -> Result<Vec<File>, CertificateError> {
    let public = |path: String, text: String| File { path: path.into(), text, is_secret: false };
    let mut files = vec![
        public("README.md".into(), readme(plan)),
        public("plan.json".into(), plan_json(plan)),
        public("tunnels.csv".into(), tunnels_csv(plan)),
    ];
    let authority = match plan.request.auth {
        Auth::Psk => None,
        Auth::Cert => Some(Authority::new()?),
    };
    let hosts = hosts(plan);
    let names: Vec<&str> = hosts.iter().map(|(name, _)| *name).collect();
    for (name, batch) in hosts {
        files.push(public(format!("{name}/ip.batch"), batch));
        files.push(public(format!("{name}/sysctl.conf"), sysctl(plan.request.kind).to_owned()));
    }
    for (index, name) in names.into_iter().take(2).enumerate() {
        for shard in 0..plan.shards.count {
            files.extend(daemon(plan, index, name, shard));
            if let Some(authority) = &authority {
                files.extend(proofs(plan, index, name, shard, authority)?);
            }
        }
    }
    Ok(files)
}

/// The folder of one daemon's files.
fn folder(gateway: &str, shard: u32) -> PathBuf {
    PathBuf::from(format!("{gateway}/charon-{shard:02}"))
}

/// The authority's certificate, and what proves the identities of one daemon. Daemons of one gateway
/// that share an identity have a key each for it.
fn proofs(
    plan: &Plan,
    index: usize,
    gateway: &str,
    shard: u32,
    authority: &Authority,
) -> Result<Vec<File>, CertificateError> {
    let folder = folder(gateway, shard);
    let file = |path: String, text, is_secret| File { path: folder.join(path), text, is_secret };
    let mut files = vec![file("x509ca/ca.pem".to_owned(), authority.certificate.clone(), false)];
    let own = plan.of_shard(shard).map(|tunnel| plan.terms.identities(&tunnel.ends)[index]);
    for identity in own.collect::<BTreeSet<_>>() {
        let proof = authority.prove(identity)?;
        files.push(file(format!("x509/{identity}.pem"), proof.certificate, false));
        files.push(file(format!("private/{identity}.pem"), proof.key, true));
    }
    Ok(files)
}

/// The files of one daemon: 0 near, 1 far.
fn daemon(plan: &Plan, index: usize, gateway: &str, shard: u32) -> Vec<File> {
    let folder = folder(gateway, shard);
    let settings = Settings {
        socket: socket(gateway, shard),
        log: None,
        log_level: 0,
        ports: plan.shards.ports(shard),
        tunnels: plan.of_shard(shard).count() as u32,
    };
    let file = |name: String, text, is_secret| File { path: folder.join(name), text, is_secret };
    let mut files = vec![
        file("strongswan.conf".into(), settings.text(), false),
        file("swanctl.conf".into(), "include conf.d/*.conf\n".into(), false),
    ];
    let connections = connections(plan, index, shard);
    for (number, chunk) in connections.chunks(FILE_CONNECTIONS).enumerate() {
        let mut text = Text::new(&format!("{gateway}, daemon {shard}, part {}", number + 1));
        text.connections(chunk);
        files.push(file(
            format!("conf.d/connections-{:03}.conf", number + 1),
            text.finish(),
            false,
        ));
    }
    if plan.request.auth == Auth::Cert {
        return files;
    }
    for (number, chunk) in secrets(plan, shard).chunks(FILE_CONNECTIONS).enumerate() {
        let mut text = Text::new("A key that every reader of the test knows: it protects nothing.");
        text.secrets(chunk);
        files.push(file(format!("conf.d/secrets-{:03}.conf", number + 1), text.finish(), true));
    }
    files
}

/// The control socket of one daemon.
fn socket(gateway: &str, shard: u32) -> PathBuf {
    PathBuf::from(format!("/run/charon-{gateway}-{shard:02}.vici"))
}

/// What one daemon is told. Tunnels that share a connection are children of one.
fn connections(plan: &Plan, index: usize, shard: u32) -> Vec<Connection> {
    let layout = plan.request.kind.layout();
    if index == 1 && plan.request.responder == Responder::Any {
        let first = |group| plan.of_shard(shard).find(|tunnel| tunnel.group == group);
        let any = |tunnel: &Planned| {
            let name = format!("any-{}", tunnel.group);
            plan.terms.far_any(&name, &tunnel.ends, layout.far_range(tunnel.group))
        };
        return (0..layout.groups).filter_map(first).map(any).collect();
    }
    let mut connections: Vec<Connection> = Vec::new();
    for tunnel in plan.of_shard(shard) {
        let near = plan.terms.near(&tunnel.ends);
        match connections.last_mut().filter(|last| last.name == near.name) {
            Some(last) => last.children.extend(near.children),
            None => connections.push(near),
        }
    }
    if index == 1 { connections.iter().map(Connection::mirrored).collect() } else { connections }
}

/// The secrets of one daemon, each pair of identities once.
fn secrets(plan: &Plan, shard: u32) -> Vec<Secret> {
    let mut known = std::collections::HashSet::new();
    plan.of_shard(shard)
        .map(|tunnel| plan.terms.secret(&tunnel.ends))
        .filter(|secret| known.insert(secret.owners.clone()))
        .collect()
}

fn tunnels_csv(plan: &Plan) -> String {
    let mut text = String::from(
        "number,pair,daemon,connection,child,near_endpoint,far_endpoint,near_network,far_network\n",
    );
    for tunnel in &plan.tunnels {
        let ends = &tunnel.ends;
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{}",
            tunnel.number,
            tunnel.group,
            tunnel.shard,
            ends.connection,
            ends.child,
            ends.endpoints[0],
            ends.endpoints[1],
            ends.selectors[0],
            ends.selectors[1],
        );
    }
    text
}

fn plan_json(plan: &Plan) -> String {
    let groups = plan.request.kind.layout().groups;
    let per_pair: Vec<u32> = (0..groups).map(|group| plan.in_group(group)).collect();
    let ports: Vec<(u16, u16)> = (0..plan.shards.count)
        .map(|shard| plan.shards.ports(shard).unwrap_or((500, 4500)))
        .collect();
    let value = json!({
        "schema": SCHEMA,
        "plan": plan.request.kind,
        "tunnels_total": plan.request.total,
        "tunnels_per_pair": per_pair,
        "far_prefix": plan.tunnels.first().map(|tunnel| tunnel.ends.selectors[1].prefix()),
        "daemons_per_gateway": plan.shards.count,
        "ports": ports,
        "auth": plan.request.auth,
        "responder": plan.request.responder,
        "ike_proposals": plan.terms.proposals,
        "esp_proposals": plan.terms.esp_proposals,
        "errata": errata(plan.request.kind),
    });
    // A value of strings and numbers is always JSON.
    serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"
}

/// Where the published text is wrong or silent, and what stands here.
fn errata(kind: Kind) -> Vec<&'static str> {
    let both = [
        "Networks follow each other without gaps; the published modulus of 255 skips every \
         48.x.255.0/24, which then travels in clear. The first 255 are the same.",
        "Endpoints that end in .0 or .255 are skipped; the published ones can end in .255. The first \
         253 are the same.",
        "Networks of another length than /24 (the scripts' BITS) follow each other as well; the \
         published arithmetic leaves gaps.",
        "The other side is routed to the peer and not to a dummy device, which not every kernel has: \
         a gateway that fails open then shows on the black link.",
        "Plans that do not fit are refused with what would; the published limit of 65 025 does not \
         hold for their own addresses.",
    ];
    let test4 = [
        "The number of tunnels is that of both pairs of ports together; the published scripts count \
         per pair.",
        "GW1 routes 16.0.0.0/8 and 17.0.0.0/8 to 123.2.0.254 and 123.3.0.254; the published next \
         hops 123.0.0.254 and 123.1.0.254 are not on its links.",
        "Both pairs use the identities ipsecgw-0 and ipsecgw-i, so that the INITIAL_CONTACT of one \
         would delete the other's IKE SA: here `unique = never`.",
        "The published switch descriptions are off by one: its IPSEC-GW-1 is GW0.",
    ];
    match kind {
        Kind::Test0 => both.to_vec(),
        Kind::Test4 => [&both[..], &test4[..]].concat(),
        Kind::PerCpu => vec![
            "The published text names no pre-shared key, identities or red addresses of the \
             gateways: here TopSecret, west and east, and .254.",
            "One tunnel is published, 10.25.0.1 to 10.25.2.2; tunnel i is the next pair of hosts, a \
             child of the same connection.",
            "per_cpu_sas needs strongSwan 6.0.2 or newer.",
        ],
    }
}

fn readme(plan: &Plan) -> String {
    let names = match plan.request.kind {
        Kind::PerCpu => ["west", "east"],
        _ => ["gw0", "gw1"],
    };
    let list: String =
        errata(plan.request.kind).iter().map(|sentence| format!("- {sentence}\n")).collect();
    format!(
        "# {:?}: {} tunnels, {} per gateway\n\n\
         Made by `peregrine lab swanctl`. On each host ({}):\n\n\
         ```\nsysctl -p HOST/sysctl.conf\nip -batch HOST/ip.batch\n```\n\n\
         On each gateway, for each of its `charon-NN` folders (`peregrine exec --` where the gateway \
         is Peregrine's):\n\n\
         ```\nexport STRONGSWAN_CONF=$PWD/{}/charon-00/strongswan.conf \
         SWANCTL_DIR=$PWD/{}/charon-00\ncharon-systemd &\nswanctl --load-all\n```\n\n\
         Then on {}, for each row of `tunnels.csv`{}:\n\n\
         ```\nswanctl --initiate --ike CONNECTION --child CHILD\n```\n\n\
         {}\n\n\
         ## Where the published text is wrong or silent\n\n{list}",
        plan.request.kind,
        plan.request.total,
        if plan.shards.count == 1 {
            "one charon".into()
        } else {
            format!("{} charons", plan.shards.count)
        },
        hosts(plan).iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        names[0],
        names[0],
        names[0],
        if plan.request.kind == Kind::PerCpu { ", or by its first packet" } else { "" },
        match plan.request.auth {
            Auth::Psk =>
                "The pre-shared key is the published one. It is for a closed test network.",
            Auth::Cert =>
                "The gateways know each other by certificates of an authority that was made for \
                 these files and whose key is kept nowhere; the published ones use a secret. Keys are \
                 in `private/`.",
        },
    )
}

/// Writes the files of a plan into a new or empty folder.
///
/// # Errors
/// [`WriteError`] if the folder holds something, or with the file that cannot be written.
pub fn write(folder: &Path, files: &[File]) -> Result<(), WriteError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| WriteError::Io { path, source }
    };
    let is_used =
        |folder: &Path| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if is_used(folder) {
        return Err(WriteError::NotEmpty(folder.to_owned()));
    }
    for file in files {
        let path = folder.join(&file.path);
        let parent = path.parent().unwrap_or(folder);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed(parent))?;
        let mode = if file.is_secret { 0o600 } else { 0o644 };
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
            .and_then(|mut out| out.write_all(file.text.as_bytes()))
            .map_err(failed(&path))?;
    }
    Ok(())
}
