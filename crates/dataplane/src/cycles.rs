//! How fast the cycle counter counts: what turns cycles into time and back.
//!
//! It counts at a fixed rate whatever the core's clock does, so its cycles are time, not work; a
//! core above its nominal frequency does more in one of them. It is read in [`cpu`](crate::cpu).
//! Nothing here is for protocol time, that is [`clock`](crate::clock).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::cpu::cycles;

/// Over how long the counter is compared with the clock. Reading both takes well below 1 µs, so the
/// rate is right to one part in 10 000; a longer comparison would only delay the first caller.
const CALIBRATION: Duration = Duration::from_millis(20);

/// How often. One comparison that nothing interrupts is enough.
const COMPARISONS: u32 = 3;

/// Cycles per second, measured once against the monotonic clock.
#[must_use]
pub fn hz() -> f64 {
    static HZ: OnceLock<f64> = OnceLock::new();
    *HZ.get_or_init(|| (0..COMPARISONS).map(|_| compare()).fold(0.0, f64::max))
}

/// One comparison. The clock is read first and last, so that an interruption between two readings
/// can only make the rate too low: the highest of several is the best.
fn compare() -> f64 {
    let (start, first) = (Instant::now(), cycles());
    while start.elapsed() < CALIBRATION {
        std::hint::spin_loop();
    }
    let (last, elapsed) = (cycles(), start.elapsed());
    last.wrapping_sub(first) as f64 / elapsed.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_counts_at_its_rate() {
        let (start, first) = (Instant::now(), cycles());
        std::thread::sleep(Duration::from_millis(30));
        let counted = cycles().wrapping_sub(first) as f64;
        // The counter was read between the clock's two readings, whatever the machine does.
        assert!(counted <= start.elapsed().as_secs_f64() * hz() * 1.05);
        assert!(counted >= 0.03 * hz() * 0.95);
        assert!(hz() >= 1e6, "{}", hz());
    }
}
