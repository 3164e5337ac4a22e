//! Questions that are put as SAs: can this kernel do such a thing?
//!
//! libreswan 5 asks whether SAs may have a direction (`XFRMA_SA_DIR`), and its successors whether
//! they may have a CPU, by adding an SA from nowhere to nowhere and deleting it again. The SA is one
//! with AES-CBC and HMAC, which the data plane does not carry; refused for that, the daemon would
//! take the answer for a no to what it asked. No packet can ever meet an SA without addresses, so
//! it is taken as a reservation of its SPI: without the key, gone by itself if nobody deletes it.

use wire::xfrm::algorithm::Algorithm;
use wire::xfrm::attribute::Attributes;
use wire::xfrm::number::{IPPROTO_ESP, attr};
use wire::xfrm::sa::UsersaInfo;

/// The encryption algorithm of such SAs, by its name and by its old one, which libreswan says.
const CIPHER: [&str; 2] = ["cbc(aes)", "aes"];

/// Whether this SA is a question only.
pub(super) fn is_probe(info: &UsersaInfo, attributes: &Attributes<'_>) -> bool {
    let nowhere = |address: &wire::xfrm::address::Address| {
        address.ip(info.family).is_some_and(|address| address.is_unspecified())
    };
    info.id.proto == IPPROTO_ESP
        && nowhere(&info.id.daddr)
        && nowhere(&info.saddr)
        && attributes
            .read::<Algorithm>(attr::ALG_CRYPT)
            .is_some_and(|head| CIPHER.contains(&head.name.as_str()))
}
