//! What a figure belongs to: the program, the processor, the engine, the rate of the counter.

use std::collections::HashMap;

use crypto::Engine;
use dataplane::cpu;
use serde::Serialize;

/// The machine and the software of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub version: &'static str,
    pub engine: String,
    pub cpu: String,
    pub cores: usize,
    /// Rate of the time stamp counter, measured.
    pub tsc_mhz: f64,
    /// The cache into which memory is asked for ahead of its use.
    pub prefetch: String,
    /// RFC 3339, UTC.
    pub date: String,
}

impl Machine {
    /// This one, with the engine that the figures are of.
    pub fn of(engine: Engine) -> Machine {
        Machine {
            version: env!("CARGO_PKG_VERSION"),
            engine: engine.version(),
            cpu: processor(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            tsc_mhz: (dataplane::cycles::hz() / 1e4).round() / 100.0,
            prefetch: prefetch(),
            date: lab::clock::utc_now(),
        }
    }

    /// The same for a page.
    pub fn facts(&self) -> Vec<(String, String)> {
        let facts = [
            ("date", self.date.clone()),
            ("processor", self.cpu.clone()),
            ("cores", self.cores.to_string()),
            ("time stamp counter", format!("{} MHz", self.tsc_mhz)),
            ("crypto engine", self.engine.clone()),
            ("prefetch into", self.prefetch.clone()),
            ("peregrine", self.version.to_owned()),
        ];
        facts.map(|(key, value)| (key.to_owned(), value)).into()
    }

    /// One line for the head of a table.
    pub fn line(&self) -> String {
        format!(
            "Memory port, one core; {}; {}; counter at {:.0} MHz; prefetch into {}",
            self.engine, self.cpu, self.tsc_mhz, self.prefetch
        )
    }
}

/// The cache into which memory is asked for, with few SAs and with many.
fn prefetch() -> String {
    match [1, usize::MAX].map(|sas| cpu::cache_for(sas).name()) {
        [few, many] if few == many => many.to_owned(),
        [few, many] => format!("{many} ({few} up to {} SAs)", cpu::NEAR_SAS),
    }
}

/// The processor's name; virtual machines hide the model, so family and model number stand with it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let fields: HashMap<&str, &str> = text
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(':').map(|(key, value)| (key.trim(), value.trim())))
        .collect();
    match (fields.get("model name"), fields.get("cpu family"), fields.get("model")) {
        (Some(name), Some(family), Some(model)) => {
            format!("{name}, family {family} model {model}")
        }
        (Some(name), ..) => (*name).to_owned(),
        _ => "unknown processor".to_owned(),
    }
}
