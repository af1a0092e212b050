//! The smallest class file with a `main`, so that a module jar made here also installs on a real base.

/// A Java 8 class that has nothing but a `main` which returns at once. `class` is its name with dots.
pub(super) fn with_empty_main(class: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let short = |bytes: &mut Vec<u8>, value: u16| bytes.extend(value.to_be_bytes());
    bytes.extend([0xCA, 0xFE, 0xBA, 0xBE]);
    short(&mut bytes, 0);
    short(&mut bytes, 52);
    // The constant pool has seven entries, and says one more.
    short(&mut bytes, 8);
    let internal_name = class.replace('.', "/");
    for text in [internal_name.as_str(), "java/lang/Object", "main", "([Ljava/lang/String;)V", "Code"] {
        bytes.push(1);
        short(&mut bytes, u16::try_from(text.len()).unwrap_or(0));
        bytes.extend(text.as_bytes());
    }
    for name in [1, 2] {
        bytes.push(7);
        short(&mut bytes, name);
    }
    // public super; this class; its parent; no interfaces, no fields; one method
    for value in [0x0021, 6, 7, 0, 0, 1] {
        short(&mut bytes, value);
    }
    // public static main, of that type, with one attribute: Code, 13 bytes long
    for value in [0x0009, 3, 4, 1, 5] {
        short(&mut bytes, value);
    }
    bytes.extend(13_u32.to_be_bytes());
    // no stack, one local; one instruction: return; no handlers, no attributes
    short(&mut bytes, 0);
    short(&mut bytes, 1);
    bytes.extend(1_u32.to_be_bytes());
    bytes.push(0xB1);
    short(&mut bytes, 0);
    short(&mut bytes, 0);
    // no attributes of the class
    short(&mut bytes, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_class_of_that_name() {
        let bytes = with_empty_main("com.acme.Main");
        assert_eq!(bytes[..8], [0xCA, 0xFE, 0xBA, 0xBE, 0, 0, 0, 52]);
        assert!(bytes.windows(13).any(|part| part == b"com/acme/Main"));
        // head 10, five texts of 3 + length, two classes of 3, class fields 12, method 10, code 4 + 13, end 2
        let texts: usize = ["com/acme/Main", "java/lang/Object", "main", "([Ljava/lang/String;)V", "Code"]
            .map(str::len)
            .iter()
            .sum();
        assert_eq!(bytes.len(), 10 + 15 + texts + 6 + 12 + 10 + 17 + 2);
    }
}
