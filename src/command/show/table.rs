//! Tables as `peregrine show` prints them, and what stands in their cells.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table};

/// A table whose columns marked with `>` are numbers.
pub(super) fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(columns.iter().map(|column| column.trim_start_matches('>')));
    for (index, column) in columns.iter().enumerate() {
        if column.starts_with('>')
            && let Some(column) = table.column_mut(index)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Hides columns of which every cell is empty: what few use takes no room where nobody does.
pub(super) fn hide_unused(table: &mut Table, columns: &[&str]) {
    let header = table.header().into_iter().flat_map(|row| row.cell_iter());
    let names: Vec<String> = header.map(Cell::content).collect();
    for (index, _) in names.iter().enumerate().filter(|(_, name)| columns.contains(&name.as_str()))
    {
        let mut cells = table.row_iter().filter_map(|row| row.cell_iter().nth(index));
        if cells.all(|cell| cell.content().is_empty())
            && let Some(column) = table.column_mut(index)
        {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }
}

/// Prints a table, or what is said where it is empty.
pub(super) fn print(table: Table, none: &str) {
    if table.is_empty() {
        println!("{none}");
    } else {
        println!("{table}");
    }
}

/// A count with thin groups of three: 1 234 567.
pub(super) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// When something was used last.
pub(super) fn ago(age_s: Option<u64>) -> String {
    age_s.map_or_else(|| "never".to_owned(), |age| format!("{age} s ago"))
}
