//! Tables for a terminal of 80 columns.
//!
//! The first column names the row and is aligned to the left, the others to the right. A table that is wider than 80
//! columns is continued below, with the first column repeated.

use std::fmt;

const WIDTH: usize = 80;

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with a title and the heads of its columns.
    pub(crate) fn new(title: impl Into<String>, heads: impl IntoIterator<Item = String>) -> Self {
        Self {
            title: title.into(),
            rows: vec![heads.into_iter().collect()],
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn width(&self, column: usize) -> usize {
        self.rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    }

    /// Runs of columns that fit beside the first one.
    fn pieces(&self) -> Vec<std::ops::Range<usize>> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut pieces = Vec::new();
        let (mut start, mut used) = (1, self.width(0));
        for column in 1..columns {
            let width = self.width(column) + 2;
            if used + width > WIDTH && column > start {
                pieces.push(start..column);
                (start, used) = (column, self.width(0));
            }
            used += width;
        }
        pieces.push(start..columns.max(1));
        pieces
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        for piece in self.pieces() {
            for row in &self.rows {
                let mut line =
                    format!("{:<1$}", row.first().map_or("", |cell| cell), self.width(0));
                for column in piece.clone() {
                    let cell = row.get(column).map_or("", |cell| cell);
                    line += &format!("  {cell:>0$}", self.width(column));
                }
                writeln!(f, "{}", line.trim_end())?;
            }
        }
        Ok(())
    }
}

/// A number with three significant digits, or a dash.
pub(crate) fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).into()).collect()
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new("title", cells(&["size", "a", "bb"]));
        table.row(cells(&["8", "1.25", "2"]));
        assert_eq!(table.to_string(), "title\nsize     a  bb\n8     1.25   2\n");
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let heads: Vec<String> = (0..20).map(|i| format!("column {i:02}")).collect();
        let mut table = Table::new("title", heads.clone());
        table.row(heads.clone());
        let text = table.to_string();
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(heads.iter().all(|head| text.contains(head.as_str())));
    }

    #[test]
    fn numbers_have_three_digits() {
        let all = [Some(3.456), Some(34.56), Some(345.6), None].map(number);
        assert_eq!(all, ["3.46", "34.6", "346", "-"]);
    }
}
