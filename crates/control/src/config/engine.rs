//! The crypto engine that a configuration names, or leaves to the CPU.

use serde::{Deserialize, Serialize};

/// Who does the cryptography.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineChoice {
    /// The best that this CPU has.
    #[default]
    Auto,
    /// Peregrine's own (x86-64 with AVX-512 and VAES).
    #[serde(rename = "vaes512")]
    Vaes512,
    /// Peregrine's own (x86-64 with AVX2, VAES and VPCLMULQDQ).
    #[serde(rename = "vaes256")]
    Vaes256,
    /// Intel's multi-buffer library (x86-64).
    IpsecMb,
    /// The portable library.
    AwsLc,
}

impl EngineChoice {
    /// Every choice.
    pub const ALL: [EngineChoice; 5] =
        [Self::Auto, Self::Vaes512, Self::Vaes256, Self::IpsecMb, Self::AwsLc];

    /// As it is written in a configuration.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.name().unwrap_or("auto")
    }

    /// The engine's name as the crypto crate selects it; `None` leaves the choice to the CPU.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Auto => None,
            Self::Vaes512 => Some("vaes512"),
            Self::Vaes256 => Some("vaes256"),
            Self::IpsecMb => Some("ipsec-mb"),
            Self::AwsLc => Some("aws-lc"),
        }
    }
}
