//! A linear program with few rows: the revised simplex method, with the inverse of the basis kept as it is.

/// A change that is not above this is none.
const PIVOT_TOLERANCE: f64 = 1e-9;

/// A reduced cost that is worth a step.
pub const OPTIMALITY_TOLERANCE: f64 = 1e-7;

/// The cost of each unit by which a row falls short.
pub const SHORTFALL_COST: f64 = 1e5;

/// A number by which rows are relaxed.
const PERTURBATION: f64 = 1e-6;

/// Something of which any number may be taken: what one costs, and what it adds to rows.
#[derive(Clone, Debug)]
pub struct LpColumn {
    pub cost: f64,
    pub entries: Vec<(usize, f64)>,
}

/// The variable of a row of the basis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basic {
    LpColumn(usize),
    /// The number by which a row is beyond its least.
    Surplus,
    /// The number by which a row falls short of its least.
    Shortfall,
}

/// The cheapest numbers of columns with which every row reaches its least.
pub struct Simplex {
    /// The inverse of the basis, column by column.
    inverse: Vec<f64>,
    basis: Vec<Basic>,
    values: Vec<f64>,
    /// The price of each row.
    pub prices: Vec<f64>,
    /// The work that was done, in multiplications or so.
    pub work: u64,
}

impl Simplex {
    pub fn new(least: &[f64]) -> Self {
        let rows = least.len();
        let mut simplex = Self {
            inverse: vec![0.0; rows * rows],
            basis: Vec::new(),
            values: Vec::new(),
            prices: Vec::new(),
            work: 0,
        };
        let mut hair = PERTURBATION;
        for (row, least) in least.iter().enumerate() {
            // Rows that differ by a hair keep the method from going in circles.
            hair += 0.618 * PERTURBATION;
            if hair > 2.0 * PERTURBATION {
                hair -= PERTURBATION;
            }
            let falls_short = *least > 0.0;
            simplex.inverse[row * rows + row] = if falls_short { 1.0 } else { -1.0 };
            simplex
                .prices
                .push(if falls_short { SHORTFALL_COST } else { 0.0 });
            simplex.basis.push(if falls_short {
                Basic::Shortfall
            } else {
                Basic::Surplus
            });
            simplex
                .values
                .push(if falls_short { *least } else { hair - least });
        }
        simplex
    }

    /// Returns the cost of a column beyond what it is worth by the prices.
    pub fn reduced_cost(&self, column: &LpColumn) -> f64 {
        let worth = column
            .entries
            .iter()
            .map(|(row, entry)| self.prices[*row] * entry);
        column.cost - worth.sum::<f64>()
    }

    /// Goes on until no column makes it cheaper. Returns false if that takes too much work.
    pub fn minimize(&mut self, columns: &[LpColumn], most_work: u64) -> bool {
        while self.work <= most_work {
            self.work += 4 * columns.len() as u64;
            let mut best = (-OPTIMALITY_TOLERANCE, None);
            for (nth, column) in columns.iter().enumerate() {
                let reduced = self.reduced_cost(column);
                if reduced < best.0 {
                    best = (
                        reduced,
                        Some((Basic::LpColumn(nth), column.entries.as_slice())),
                    );
                }
            }
            let mut surplus = [(0, -1.0)];
            if let Some(row) = (0..self.prices.len())
                .min_by(|one, other| self.prices[*one].total_cmp(&self.prices[*other]))
                && self.prices[row] < best.0
            {
                surplus[0].0 = row;
                best = (self.prices[row], Some((Basic::Surplus, surplus.as_slice())));
            }
            let (reduced, Some((basic, entries))) = best else {
                return true;
            };
            if !self.enter_basis(basic, entries, reduced) {
                return false;
            }
        }
        false
    }

    fn enter_basis(&mut self, basic: Basic, entries: &[(usize, f64)], reduced: f64) -> bool {
        let rows = self.values.len();
        let mut changes = vec![0.0; rows];
        for (of, entry) in entries {
            let column = &self.inverse[of * rows..][..rows];
            for (change, own) in changes.iter_mut().zip(column) {
                *change += own * entry;
            }
        }
        let mut leaving: Option<(f64, usize)> = None;
        for (row, change) in changes.iter().enumerate() {
            let ratio = self.values[row] / change;
            if *change > PIVOT_TOLERANCE
                && leaving.is_none_or(|(least, other)| {
                    ratio < least - 1e-12 || ratio < least + 1e-12 && *change > changes[other]
                })
            {
                leaving = Some((ratio, row));
            }
        }
        let Some((ratio, leaving)) = leaving else {
            return false;
        };
        for (value, change) in self.values.iter_mut().zip(&changes) {
            *value = (*value - ratio * change).max(0.0);
        }
        self.values[leaving] = ratio;
        self.basis[leaving] = basic;
        let pivot = std::mem::take(&mut changes[leaving]);
        self.work += rows as u64;
        for (of, price) in self.prices.iter_mut().enumerate() {
            let column = &mut self.inverse[of * rows..][..rows];
            // Most entries of the inverse are zero.
            if column[leaving] != 0.0 {
                let entry = column[leaving] / pivot;
                for (own, change) in column.iter_mut().zip(&changes) {
                    *own -= change * entry;
                }
                column[leaving] = entry;
                *price += reduced * entry;
                self.work += rows as u64;
            }
        }
        true
    }

    /// Returns the number of each column, of so many.
    pub fn column_values(&self, columns: usize) -> Vec<f64> {
        let mut numbers = vec![0.0; columns];
        for (basic, value) in self.basis.iter().zip(&self.values) {
            if let Basic::LpColumn(nth) = basic {
                numbers[*nth] += value;
            }
        }
        numbers
    }

    /// Returns what all rows fall short together.
    pub fn total_shortfall(&self) -> f64 {
        let rows = self.basis.iter().zip(&self.values);
        rows.filter(|(basic, _)| **basic == Basic::Shortfall)
            .map(|(_, value)| value)
            .sum()
    }
}
