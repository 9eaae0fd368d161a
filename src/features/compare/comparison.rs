//! The comparison of programs outside MPS with the same programs as clients.

/// The least, the mean and the greatest of some measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub least: f64,
    pub mean: f64,
    pub greatest: f64,
}

impl Spread {
    /// Summarises measurements, of which there is at least one.
    pub fn of(values: &[f64]) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "there are few")]
        let count = values.len().max(1) as f64;
        Self {
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            mean: values.iter().sum::<f64>() / count,
            greatest: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// The quantity that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The number at the end of a program's last line, and one of these lines.
    Rate(String),
    /// Runs of the program per second.
    Runs,
}

/// One way of running copies: outside MPS, or as clients.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// The sum over all copies, for each round.
    pub throughput: Vec<f64>,
    /// The most device memory in use, in bytes; `None` if the driver does not tell.
    pub memory: Option<u64>,
}

/// Both ways of running a number of copies.
#[derive(Clone, Debug)]
pub struct Compared {
    pub copies: u32,
    pub outside: Way,
    pub mps: Way,
}

impl Compared {
    /// Returns the throughput as clients divided by that outside MPS, round by round.
    pub fn speed_up(&self) -> Spread {
        let rounds = self.mps.throughput.iter().zip(&self.outside.throughput);
        let ratios: Vec<f64> = rounds.map(|(mps, outside)| mps / outside).collect();
        Spread::of(&ratios)
    }
}

/// A comparison on one device.
#[derive(Debug)]
pub struct Comparison {
    /// The device's name.
    pub device: String,
    /// Its profile and GPU, such as `3g.40gb of NVIDIA A100-SXM4-80GB`.
    pub kind: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    pub quantity: Quantity,
    pub rounds: u32,
    pub rows: Vec<Compared>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_up_is_that_of_each_round() {
        let way = |throughput: &[f64]| Way {
            throughput: throughput.to_vec(),
            memory: None,
        };
        let compared = Compared {
            copies: 8,
            outside: way(&[10.0, 20.0]),
            mps: way(&[30.0, 50.0]),
        };
        let wanted = Spread {
            least: 2.5,
            mean: 2.75,
            greatest: 3.0,
        };
        assert_eq!(compared.speed_up(), wanted);
    }
}
