//! SAs of single CPUs (RFC 9611), installed as an IKE daemon would: `ip` of Debian 12 has no word for
//! them.
//!
//! Each tunnel has its SAs for all CPUs and its policies from `ip` already; here every CPU that has a
//! worker gets one to send by, and the one that the peer's CPU of the same number sends by.

use std::net::IpAddr;
use std::path::Path;

use wire::xfrm::Builder;
use wire::xfrm::address::{Be32, Id};
use wire::xfrm::algorithm::{AlgorithmAead, Name};
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::netlink::{Header, NLM_F_ACK, NLM_F_REQUEST};
use wire::xfrm::number::{AF_INET, AF_INET6, IPPROTO_ESP, attr, mode, msg, sa_flag};
use wire::xfrm::replay::ReplayStateEsn;
use wire::xfrm::sa::UsersaInfo;
use zerocopy::IntoBytes;

use crate::rates::{Program, ProgramError};
use crate::recipe::{Recipe, Side, Tunnel, test_key};

/// The salt that RFC 4106 §4 appends to the key.
const SALT_BYTES: usize = 4;

/// Installs the SAs of `cpus` for all tunnels at the gateway of `side`.
pub fn install(
    socket: &Path,
    recipe: &Recipe,
    side: Side,
    tunnels: u32,
    cpus: &[usize],
) -> Result<(), ProgramError> {
    let mut program = Program::connect(socket)?;
    let mut request = Vec::new();
    for tunnel in (1..=tunnels).filter_map(|number| recipe.tunnel(number)) {
        for (position, &cpu) in (0..).zip(cpus) {
            for from in [side, side.peer()] {
                let spi = tunnel.spi_of_cpu(from, position);
                write(&mut request, recipe, &tunnel, from, (spi, cpu as u32));
                program.ask(&request)?;
            }
        }
    }
    Ok(())
}

/// NEWSA of the SA by which `from` sends from one CPU.
fn write(
    request: &mut Vec<u8>,
    recipe: &Recipe,
    tunnel: &Tunnel,
    from: Side,
    (spi, cpu): (u32, u32),
) {
    let esp = &recipe.esp;
    let (source, destination) = (tunnel.endpoint(from), tunnel.endpoint(from.peer()));
    let family = |address: IpAddr| if address.is_ipv4() { AF_INET } else { AF_INET6 };
    let mixed = tunnel.near_selector.is_ipv6() != source.is_ipv6();
    let info = UsersaInfo {
        id: Id {
            daddr: destination.into(),
            spi: Be32::new(spi),
            proto: IPPROTO_ESP,
            ..Id::default()
        },
        saddr: source.into(),
        lft: LifetimeConfig::UNLIMITED,
        reqid: tunnel.reqid,
        family: family(source),
        mode: mode::TUNNEL,
        flags: if esp.esn { sa_flag::ESN } else { 0 } | if mixed { sa_flag::AF_UNSPEC } else { 0 },
        ..UsersaInfo::default()
    };
    let key_bytes = usize::from(esp.key_bits / 8) + SALT_BYTES;
    let head = AlgorithmAead {
        name: Name::new(&esp.algorithm),
        key_len: 8 * key_bytes as u32,
        icv_len: esp.icv_bits.into(),
    };
    let key = test_key(recipe.seed, spi, key_bytes);
    let bitmap = vec![0_u32; esp.replay_window.div_ceil(32) as usize];
    let window = ReplayStateEsn {
        bmp_len: bitmap.len() as u32,
        replay_window: esp.replay_window,
        ..ReplayStateEsn::default()
    };
    request.clear();
    let header =
        Header { kind: msg::NEWSA, flags: NLM_F_REQUEST | NLM_F_ACK, seq: 1, ..Header::default() };
    Builder::new(request, header)
        .fixed(&info)
        .attribute_parts(attr::ALG_AEAD, &[head.as_bytes(), &key])
        .attribute_parts(attr::REPLAY_ESN_VAL, &[window.as_bytes(), bitmap.as_bytes()])
        .attribute_parts(attr::SA_PCPU, &[cpu.as_bytes()])
        .finish();
}
