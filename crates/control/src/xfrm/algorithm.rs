//! Algorithms: which exist, which the data plane carries, and what to say of the others.
//!
//! An authentication algorithm is looked up although none is carried yet, because the kernel
//! complains of an unknown one before it comes to what we do not carry.

use rustix::io::Errno;
use wire::xfrm::algorithm::{Algorithm, AlgorithmAead, AlgorithmAuth, Name};
use wire::xfrm::attribute::Attributes;
use wire::xfrm::number::attr;

use super::failure::Failure;
use super::sa::Aead;
use super::secret::Key;

/// The one AEAD that the data plane carries.
pub(super) const RFC4106: &str = "rfc4106(gcm(aes))";

/// Key lengths of RFC 4106 in bytes: AES-128, -192 or -256 and 4 bytes of salt.
const RFC4106_KEY_BYTES: [usize; 3] = [20, 28, 36];

/// The ICV length that the data plane carries.
const ICV_BITS: u32 = 128;

/// Authentication algorithms of the kernel: name, old name, full ICV length in bits.
const AUTH: [(&str, &str, u32); 10] = [
    ("digest_null", "", 0),
    ("hmac(md5)", "md5", 128),
    ("hmac(sha1)", "sha1", 160),
    ("hmac(sha256)", "sha256", 256),
    ("hmac(sha384)", "", 384),
    ("hmac(sha512)", "", 512),
    ("hmac(rmd160)", "rmd160", 160),
    ("xcbc(aes)", "", 128),
    ("cmac(aes)", "", 128),
    ("hmac(sm3)", "sm3", 256),
];

/// Compression algorithms of the kernel that it can find an implementation of.
const COMPRESSION: [&str; 1] = ["deflate"];

/// The AEAD attribute as the data plane's algorithm and key; `None` when it is absent.
pub(super) fn aead(attributes: &Attributes<'_>) -> Result<Option<Aead>, Failure> {
    let Some(attribute) = attributes.get(attr::ALG_AEAD) else { return Ok(None) };
    let Some(head) = attribute.read::<AlgorithmAead>() else { return Ok(None) };
    if head.name.as_str() != RFC4106 || head.icv_len != ICV_BITS {
        return Err(Failure::because(Errno::NOSYS, "Requested AEAD algorithm not found"));
    }
    let key = key_of(attribute.payload, size_of::<AlgorithmAead>(), head.key_len)?;
    Ok(Some(Aead {
        name: RFC4106,
        key_bits: head.key_len,
        icv_bits: head.icv_len,
        key: Key::new(key),
    }))
}

/// What the kernel says when it sets the key up, which is after everything else was looked up.
pub(super) fn check_key(aead: &Aead) -> Result<(), Failure> {
    if RFC4106_KEY_BYTES.contains(&aead.key.expose().len()) {
        return Ok(());
    }
    Err(Failure::invalid("Kernel was unable to initialize cryptographic operations"))
}

/// Authentication: truncated first, then plain, as the kernel looks. Whether there was any.
pub(super) fn find_auth(attributes: &Attributes<'_>) -> Result<bool, Failure> {
    if let Some(head) = attributes.read::<AlgorithmAuth>(attr::ALG_AUTH_TRUNC) {
        let full = auth_bits(&head.name)
            .ok_or(Failure::because(Errno::NOSYS, "Requested AUTH_TRUNC algorithm not found"))?;
        if head.trunc_len > full {
            return Err(Failure::invalid("Invalid length requested for truncated ICV"));
        }
        return Ok(true);
    }
    let Some(head) = attributes.read::<Algorithm>(attr::ALG_AUTH) else { return Ok(false) };
    auth_bits(&head.name)
        .ok_or(Failure::because(Errno::NOSYS, "Requested AUTH algorithm not found"))?;
    Ok(true)
}

/// Encryption without authentication of its own: none is carried.
pub(super) fn find_encryption(attributes: &Attributes<'_>) -> Result<(), Failure> {
    if attributes.has(attr::ALG_CRYPT) {
        return Err(Failure::because(Errno::NOSYS, "Requested CRYPT algorithm not found"));
    }
    Ok(())
}

/// Compression.
pub(super) fn find_compression(attributes: &Attributes<'_>) -> Result<(), Failure> {
    match attributes.read::<Algorithm>(attr::ALG_COMP) {
        Some(head) if !COMPRESSION.contains(&head.name.as_str()) => {
            Err(Failure::because(Errno::NOSYS, "Requested COMP algorithm not found"))
        }
        _ => Ok(()),
    }
}

/// The key lengths that the four attributes promise, against what they hold.
pub(super) fn check_lengths(attributes: &Attributes<'_>) -> Result<(), Failure> {
    if let Some(attribute) = attributes.get(attr::ALG_AEAD) {
        let bits = attribute.read::<AlgorithmAead>().map_or(0, |head| head.key_len);
        key_of(attribute.payload, size_of::<AlgorithmAead>(), bits)?;
    }
    if let Some(attribute) = attributes.get(attr::ALG_AUTH_TRUNC) {
        let bits = attribute.read::<AlgorithmAuth>().map_or(0, |head| head.key_len);
        key_of(attribute.payload, size_of::<AlgorithmAuth>(), bits)
            .map_err(|_| Failure::invalid("Invalid AUTH_TRUNC attribute length"))?;
    }
    for kind in [attr::ALG_AUTH, attr::ALG_CRYPT, attr::ALG_COMP] {
        let Some(attribute) = attributes.get(kind) else { continue };
        let bits = attribute.read::<Algorithm>().map_or(0, |head| head.key_len);
        key_of(attribute.payload, size_of::<Algorithm>(), bits)
            .map_err(|_| Failure::invalid("Invalid AUTH/CRYPT/COMP attribute length"))?;
    }
    Ok(())
}

fn auth_bits(name: &Name) -> Option<u32> {
    let name = name.as_str();
    let found = AUTH.iter().find(|(new, old, _)| name == *new || (name == *old && !old.is_empty()));
    found.map(|&(_, _, bits)| bits)
}

fn key_of(payload: &[u8], head: usize, bits: u32) -> Result<&[u8], Failure> {
    // In 32 bits, as the kernel: a length of nearly 2^32 bits is no bytes, which no key has.
    Some(bits.wrapping_add(7) / 8)
        .and_then(|len| usize::try_from(len).ok())
        .and_then(|len| payload.get(head..)?.get(..len))
        .ok_or(Failure::invalid("Invalid AEAD attribute length"))
}
