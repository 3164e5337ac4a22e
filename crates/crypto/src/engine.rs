//! Who does the arithmetic, and why one cannot.
//!
//! Nothing here is a setting: an engine is named by the configuration or chosen for this CPU.

use std::fmt;

use crate::{aws_lc, ipsec_mb, vaes256, vaes512};

/// Who can seal and open packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// Our own, for x86-64 CPUs with AVX-512, VAES and VPCLMULQDQ: dense keys.
    Vaes512,
    /// Our own, for x86-64 CPUs with AVX2, VAES and VPCLMULQDQ: the same dense keys.
    Vaes256,
    /// Intel's multi-buffer library for IPsec: two to three times as fast as AWS-LC on small packets;
    /// x86_64 only.
    IpsecMb,
    /// AWS-LC through aws-lc-rs: everywhere.
    AwsLc,
}

/// Why the engine that was asked for cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No engine has this name.
    #[error(
        "crypto engine \"{0}\" is unknown; the engines are vaes512, vaes256, ipsec-mb and aws-lc"
    )]
    Unknown(String),
    /// The engine exists, but not in this build or on this CPU.
    #[error("crypto engine {engine} cannot be used here: {reason}; choose aws-lc or name none")]
    Unavailable {
        /// The engine that was asked for.
        engine: Engine,
        /// What it lacks.
        reason: String,
    },
}

impl Engine {
    /// Every engine, the fastest first.
    pub const ALL: [Engine; 4] = [Engine::Vaes512, Engine::Vaes256, Engine::IpsecMb, Engine::AwsLc];

    /// The engine called `name`, or without a name the fastest that works here.
    ///
    /// # Errors
    ///
    /// [`EngineError`] when an engine is named that does not exist, or does not work here. Without a name
    /// there is always one.
    pub fn select(name: Option<&str>) -> Result<Engine, EngineError> {
        match name {
            None => {
                let best = Engine::ALL.into_iter().find(|engine| engine.check().is_ok());
                Ok(best.unwrap_or(Engine::AwsLc))
            }
            Some(name) => {
                let engine = Engine::ALL.into_iter().find(|engine| engine.name() == name);
                let engine = engine.ok_or_else(|| EngineError::Unknown(name.to_owned()))?;
                engine.check().map(|()| engine)
            }
        }
    }

    /// The name used in configuration and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Engine::Vaes512 => "vaes512",
            Engine::Vaes256 => "vaes256",
            Engine::IpsecMb => "ipsec-mb",
            Engine::AwsLc => "aws-lc",
        }
    }

    /// Name, library version and instruction set, as reports print it: `ipsec-mb 1.3.0 (avx512)`.
    #[must_use]
    pub fn version(self) -> String {
        let version = match self {
            Engine::Vaes512 | Engine::Vaes256 => env!("CARGO_PKG_VERSION").to_owned(),
            Engine::IpsecMb => ipsec_mb::version().unwrap_or_else(|_| "(not available)".to_owned()),
            Engine::AwsLc => aws_lc::version(),
        };
        format!("{self} {version}")
    }

    /// Whether the engine works in this build, on this CPU.
    fn check(self) -> Result<(), EngineError> {
        match self {
            Engine::Vaes512 => {
                vaes512::supported().map(drop).map_err(|reason| self.unavailable(reason))
            }
            Engine::Vaes256 => {
                vaes256::supported().map(drop).map_err(|reason| self.unavailable(reason))
            }
            Engine::IpsecMb => ipsec_mb::available().map_err(|reason| self.unavailable(reason)),
            Engine::AwsLc => Ok(()),
        }
    }

    pub(crate) fn unavailable(self, reason: String) -> EngineError {
        EngineError::Unavailable { engine: self, reason }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_found_by_their_names() {
        assert_eq!(Engine::select(Some("aws-lc")), Ok(Engine::AwsLc));
        let unknown = Engine::select(Some("openssl")).unwrap_err();
        assert!(
            unknown.to_string().contains("the engines are vaes512, vaes256, ipsec-mb and aws-lc"),
            "{unknown}"
        );
    }

    #[test]
    fn without_a_name_the_fastest_engine_of_this_cpu_is_taken() {
        let mut works_here = Engine::ALL.into_iter().filter(|engine| match engine.check() {
            Ok(()) => true,
            Err(EngineError::Unavailable { reason, .. }) => {
                assert!(!reason.is_empty());
                false
            }
            Err(other) => panic!("{other}"),
        });
        assert_eq!(Engine::select(None).ok(), works_here.next());
        assert!(works_here.all(|engine| Engine::select(Some(engine.name())) == Ok(engine)));
    }

    #[test]
    fn versions_begin_with_the_name_and_hold_a_number() {
        for engine in Engine::ALL.into_iter().filter(|engine| engine.check().is_ok()) {
            let version = engine.version();
            assert!(version.starts_with(engine.name()), "{version}");
            assert!(version.contains(|c: char| c.is_ascii_digit()), "{version}");
        }
    }
}
