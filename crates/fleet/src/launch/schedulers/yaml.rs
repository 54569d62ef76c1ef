//! JSON values as readable YAML. Every string that YAML could read as another type is quoted.

use std::fmt::Write as _;

use serde_json::Value;

/// A YAML document.
pub(super) fn document(value: &Value) -> String {
    let mut text = String::from("---\n");
    write(&mut text, value, 0);
    text
}

/// A value whose first line starts at the current position and further lines at `indent`.
fn write(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (at, (name, value)) in fields.iter().enumerate() {
                let pad = if at == 0 { 0 } else { indent };
                let _ = write!(text, "{:pad$}{}:", "", scalar(name));
                nested(text, value, indent + 2);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (at, item) in items.iter().enumerate() {
                let pad = if at == 0 { 0 } else { indent };
                let _ = write!(text, "{:pad$}- ", "");
                write(text, item, indent + 2);
            }
        }
        Value::String(string) => {
            let _ = writeln!(text, "{}", scalar(string));
        }
        other => {
            let _ = writeln!(text, "{other}");
        }
    }
}

/// The text after `name:`.
fn nested(text: &mut String, value: &Value, indent: usize) {
    let is_block = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if is_block {
        let _ = write!(text, "\n{:indent$}", "");
    } else {
        text.push(' ');
    }
    write(text, value, indent);
}

/// Unquoted if YAML can only read it as a string; JSON's quotes are valid in YAML.
fn scalar(string: &str) -> String {
    let begins = string.starts_with(|c: char| c.is_ascii_alphabetic());
    let plain = string.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    let words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    match begins && plain && !words.contains(&string.to_ascii_lowercase().as_str()) {
        true => string.to_owned(),
        false => Value::from(string).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_lists_and_scalars_are_written_as_blocks() {
        let value = json!({
            "name": "plain", "number": 3, "text": "3", "truth": "yes", "empty": {}, "none": [],
            "list": [{"a": 1, "b": [2]}, "x: y"],
        });
        let expected = "---\nempty: {}\nlist:\n  - a: 1\n    b:\n      - 2\n  - \"x: y\"\nname: plain\nnone: []\nnumber: 3\n\
                        text: \"3\"\ntruth: \"yes\"\n";
        assert_eq!(document(&value), expected);
    }
}
