//! Building blocks of the page: sections, tables, data URLs. All text that comes in is escaped.

use crate::report::svg::escape;

/// A section with its heading; nothing when it has no content.
pub(crate) fn section(id: &str, title: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    format!(
        "<section aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{}</h2>\n{content}\
         </section>\n",
        escape(title)
    )
}

/// A list of sentences.
pub(crate) fn list(class: &str, items: &[String]) -> String {
    let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escape(item))).collect();
    format!("<ul class=\"{class}\" role=\"note\">\n{items}</ul>\n")
}

/// A table with a caption, column headers, and a header cell in front of each row.
pub(crate) struct Table {
    head: String,
    rows: String,
    class: &'static str,
}

impl Table {
    /// A table of figures.
    pub fn new(caption: &str, header: &[&str]) -> Table {
        let mut head = format!("<caption>{}</caption>\n<thead><tr>", escape(caption));
        for cell in header {
            head.push_str(&format!("<th scope=\"col\">{}</th>", escape(cell)));
        }
        head.push_str("</tr></thead>\n");
        Table { head, rows: String::new(), class: "figures" }
    }

    /// The same for text, which is not aligned to the right.
    pub fn plain(mut self) -> Table {
        self.class = "plain";
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: &[String]) {
        self.rows.push_str("<tr>");
        for (index, cell) in cells.iter().enumerate() {
            let cell = escape(cell);
            self.rows.push_str(&match index {
                0 => format!("<th scope=\"row\">{cell}</th>"),
                _ => format!("<td>{cell}</td>"),
            });
        }
        self.rows.push_str("</tr>\n");
    }

    /// Whether no row was added.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The element, in a frame that scrolls where the page is narrow.
    pub fn finish(self) -> String {
        format!(
            "<div class=\"scroll\" tabindex=\"0\"><table class=\"{}\">\n{}<tbody>\n{}</tbody>\n\
             </table></div>\n",
            self.class, self.head, self.rows
        )
    }
}

/// A file inside a link (RFC 2397), percent-encoded so that it stays searchable in the source.
pub(crate) fn data_url(kind: &str, content: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut url = format!("data:{kind};charset=utf-8,");
    for byte in content.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => url.push(byte.into()),
            b'-' | b'.' | b'_' | b'~' | b',' | b':' | b'/' | b'{' | b'}' | b'[' | b']' => {
                url.push(byte.into());
            }
            _ => {
                url.push('%');
                url.push(HEX[usize::from(byte >> 4)].into());
                url.push(HEX[usize::from(byte & 15)].into());
            }
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_cannot_leave_their_attribute() {
        let url = data_url("text/csv", "a,\"b\"\n<µ>%#");
        assert_eq!(url, "data:text/csv;charset=utf-8,a,%22b%22%0A%3C%C2%B5%3E%25%23");
    }
}
