//! The table that says where every packet went, and whether it closes.
//!
//! It does not collect counters; it only adds up what the places reported.

use serde::{Deserialize, Serialize};

/// One line of the accounting: so many packets under one name at one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountingRow {
    /// The place that must balance: `path`, `gw0`, `gw1`.
    pub place: String,
    /// Whether these packets came into the place or left its books.
    pub side: Side,
    /// What they are: `offered`, `delivered`, or the name of a drop.
    pub name: String,
    /// How many.
    pub packets: u64,
}

/// The two sides of the books of one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Packets that the place has to answer for.
    In,
    /// Packets it can name the fate of.
    Out,
}

/// A place whose books do not close.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imbalance {
    /// The place.
    pub place: String,
    /// Packets in.
    pub entered: u64,
    /// Packets whose fate has a name.
    pub named: u64,
}

/// The places of the table that do not close, in the order they first appear.
pub fn balance(rows: &[AccountingRow]) -> Vec<Imbalance> {
    let mut books: Vec<Imbalance> = Vec::new();
    for row in rows {
        let index = books.iter().position(|book| book.place == row.place).unwrap_or_else(|| {
            books.push(Imbalance { place: row.place.clone(), entered: 0, named: 0 });
            books.len() - 1
        });
        match row.side {
            Side::In => books[index].entered += row.packets,
            Side::Out => books[index].named += row.packets,
        }
    }
    books.retain(|book| book.entered != book.named);
    books
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(place: &str, side: Side, packets: u64) -> AccountingRow {
        AccountingRow { place: place.into(), side, name: "x".into(), packets }
    }

    #[test]
    fn only_unbalanced_places_are_reported() {
        let mut rows = vec![
            row("gw0", Side::In, 10),
            row("gw0", Side::Out, 7),
            row("path", Side::In, 5),
            row("gw0", Side::Out, 3),
            row("path", Side::Out, 5),
        ];
        assert_eq!(balance(&rows), vec![]);
        rows.push(row("path", Side::Out, 1));
        assert_eq!(balance(&rows), vec![Imbalance { place: "path".into(), entered: 5, named: 6 }]);
    }
}
