//! What `swanctl --raw` prints, as JSON.
//!
//! The form is `list-sa event {west {uniqueid=1 … child-sas {net-1 {name=net … local-ts=[10.1.0.0/24]}}}}`:
//! sections in braces, lists in brackets, values as they are. A value with a space in it cannot be
//! told from two, so tests use none.

use serde_json::{Map, Value};

/// Every event in the output, without its name.
pub fn events(text: &str) -> Vec<Value> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((_, body)) = line.split_once(" event ").or_else(|| line.split_once(" reply "))
        else {
            continue;
        };
        let mut rest = body.trim_start().strip_prefix('{').unwrap_or_default();
        found.push(Value::Object(section(&mut rest)));
    }
    found
}

/// The pairs up to the closing brace.
fn section(rest: &mut &str) -> Map<String, Value> {
    let mut pairs = Map::new();
    loop {
        *rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            *rest = after;
            return pairs;
        }
        let Some(end) = rest.find(['=', ' ', '{', '}']) else { return pairs };
        let name = rest[..end].to_owned();
        *rest = rest[end..].trim_start();
        if let Some(after) = rest.strip_prefix('{') {
            *rest = after;
            pairs.insert(name, Value::Object(section(rest)));
        } else if let Some(after) = rest.strip_prefix("=[") {
            let end = after.find(']').unwrap_or(after.len());
            let items = after[..end].split_whitespace().map(Value::from).collect();
            *rest = after.get(end + 1..).unwrap_or_default();
            pairs.insert(name, Value::Array(items));
        } else if let Some(after) = rest.strip_prefix('=') {
            let end = after.find([' ', '}']).unwrap_or(after.len());
            pairs.insert(name, Value::from(&after[..end]));
            *rest = &after[end..];
        }
    }
}

/// One CHILD_SA as charon lists it.
#[derive(Clone, Debug)]
pub struct ChildSa {
    /// Everything that it says.
    pub fields: Map<String, Value>,
}

/// One IKE_SA as charon lists it.
#[derive(Clone, Debug)]
pub struct IkeSa {
    /// The connection's name.
    pub name: String,
    /// Everything that it says but its children.
    pub fields: Map<String, Value>,
    /// Its CHILD_SAs.
    pub children: Vec<ChildSa>,
}

/// The IKE_SAs in the output of `swanctl --list-sas --raw`.
pub fn sas(text: &str) -> Vec<IkeSa> {
    let mut found = Vec::new();
    for event in events(text) {
        let Value::Object(connections) = event else { continue };
        for (name, value) in connections {
            let Value::Object(mut fields) = value else { continue };
            let children = match fields.remove("child-sas") {
                Some(Value::Object(children)) => children
                    .into_iter()
                    .filter_map(|(_, child)| match child {
                        Value::Object(fields) => Some(ChildSa { fields }),
                        _ => None,
                    })
                    .collect(),
                _ => Vec::new(),
            };
            found.push(IkeSa { name, fields, children });
        }
    }
    found
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

impl IkeSa {
    /// `ESTABLISHED` and the like.
    pub fn state(&self) -> &str {
        text(&self.fields, "state")
    }

    /// A field, empty if it is not said.
    pub fn text(&self, name: &str) -> &str {
        text(&self.fields, name)
    }
}

impl ChildSa {
    /// `INSTALLED` and the like.
    pub fn state(&self) -> &str {
        text(&self.fields, "state")
    }

    /// The configured name.
    pub fn name(&self) -> &str {
        text(&self.fields, "name")
    }

    /// A field, empty if it is not said.
    pub fn text(&self, name: &str) -> &str {
        text(&self.fields, name)
    }

    /// A field as a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }

    /// The inbound SPI.
    pub fn spi_in(&self) -> u32 {
        u32::from_str_radix(self.text("spi-in"), 16).unwrap_or(0)
    }

    /// The outbound SPI.
    pub fn spi_out(&self) -> u32 {
        u32::from_str_radix(self.text("spi-out"), 16).unwrap_or(0)
    }
}

/// The reader, on what strongSwan 5.9.8 printed.
#[test]
fn a_listing_is_read() {
    let text = "list-sa event {west {uniqueid=1 version=2 state=ESTABLISHED child-sas {net-1 \
                {name=net state=INSTALLED spi-in=c1a2b3c4 spi-out=00000101 bytes-in=84 \
                local-ts=[10.1.0.0/24 fd01::/64] remote-ts=[]} net-2 {name=other}} tasks {}}}\n\
                list-sas reply {}\n";
    let found = sas(text);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].name.as_str(), found[0].state()), ("west", "ESTABLISHED"));
    assert_eq!(found[0].children.len(), 2);
    let child = &found[0].children[0];
    assert_eq!(
        (child.name(), child.state(), child.number("bytes-in")),
        ("net", "INSTALLED", Some(84))
    );
    assert_eq!((child.spi_in(), child.spi_out()), (0xc1a2_b3c4, 0x101));
    assert_eq!(child.fields["local-ts"].as_array().map(Vec::len), Some(2));
}
