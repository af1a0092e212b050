//! Requests out of a stream of bytes. Pure: fed with what came, it gives what is complete.

use bytes::{Buf, BytesMut};

/// Largest body that is read.
pub(super) const MAX_BODY: usize = 1 << 20;
/// Largest head.
const MAX_HEAD: usize = 64 << 10;
/// Most header fields.
const MAX_FIELDS: usize = 64;

/// The head of a request, as far as arklet looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub is_post: bool,
    /// The path without its first slash and without a query.
    pub command: String,
}

/// What the bytes so far amount to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// The client waits for leave to send its body.
    Continue,
    Request(Head, Vec<u8>),
    /// The body is over the limit, or will be; it is skipped.
    TooLarge {
        close: bool,
    },
    /// Not HTTP.
    Malformed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    Body {
        head: Head,
        framing: Framing,
        content: Vec<u8>,
        close: bool,
        /// Already refused: the rest is only counted off.
        refused: bool,
    },
}

/// Reads requests, one after the other.
#[derive(Debug, Default)]
pub(super) struct Reader {
    state: State,
}

struct ParsedHead {
    head: Head,
    framing: Framing,
    expects: bool,
    close: bool,
}

impl Reader {
    /// The next thing that is complete in `input`; none if more bytes are needed.
    pub(super) fn next(&mut self, input: &mut BytesMut) -> Option<Part> {
        loop {
            if matches!(self.state, State::Head) {
                match parse_head(input) {
                    Err(part) => return part,
                    Ok(parsed) => {
                        let too_large = parsed.framing_exceeds();
                        let close = parsed.close;
                        let expects = parsed.expects;
                        self.state = State::Body {
                            head: parsed.head,
                            framing: parsed.framing,
                            content: Vec::new(),
                            close,
                            refused: too_large,
                        };
                        if too_large {
                            return Some(Part::TooLarge { close });
                        }
                        if expects {
                            return Some(Part::Continue);
                        }
                    }
                }
            }
            let done = self.read_body(input)?;
            match done {
                Done::Whole(head, content) => return Some(Part::Request(head, content)),
                Done::Skipped => {}
                Done::TooLarge { close } => return Some(Part::TooLarge { close }),
                Done::Malformed => return Some(Part::Malformed),
            }
        }
    }

    fn read_body(&mut self, input: &mut BytesMut) -> Option<Done> {
        let State::Body { framing, content, close, refused, .. } = &mut self.state else { return None };
        let finished = match framing {
            Framing::Length(left) => {
                let count = input.len().min(*left);
                let part = input.split_to(count);
                if !*refused {
                    content.extend_from_slice(&part);
                }
                *left -= count;
                *left == 0
            }
            Framing::Chunked => loop {
                let (at, size) = match httparse::parse_chunk_size(input) {
                    Ok(httparse::Status::Complete(found)) => found,
                    Ok(httparse::Status::Partial) => break false,
                    Err(_) => return Some(Done::Malformed),
                };
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                if size > MAX_BODY && !*refused {
                    *refused = true;
                    return Some(Done::TooLarge { close: *close });
                }
                // A chunk is taken whole, with the line end behind it.
                if input.len() < at.saturating_add(size).saturating_add(2) {
                    break false;
                }
                input.advance(at);
                let part = input.split_to(size);
                input.advance(2);
                if size == 0 {
                    break true;
                }
                if !*refused {
                    content.extend_from_slice(&part);
                }
                if content.len() > MAX_BODY && !*refused {
                    *refused = true;
                    return Some(Done::TooLarge { close: *close });
                }
            },
        };
        if !finished {
            return None;
        }
        match std::mem::take(&mut self.state) {
            State::Body { refused: true, .. } => Some(Done::Skipped),
            State::Body { head, content, .. } => Some(Done::Whole(head, content)),
            State::Head => None,
        }
    }
}

enum Done {
    Whole(Head, Vec<u8>),
    Skipped,
    TooLarge { close: bool },
    Malformed,
}

impl ParsedHead {
    fn framing_exceeds(&self) -> bool {
        matches!(self.framing, Framing::Length(length) if length > MAX_BODY)
    }
}

/// Takes a head off the input; an error is what to give instead, if anything.
fn parse_head(input: &mut BytesMut) -> Result<ParsedHead, Option<Part>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let (length, parsed) = match request.parse(input) {
        Ok(httparse::Status::Complete(length)) => (length, read_head(&request)),
        Ok(httparse::Status::Partial) if input.len() <= MAX_HEAD => return Err(None),
        _ => return Err(Some(Part::Malformed)),
    };
    input.advance(length);
    parsed.ok_or(Some(Part::Malformed))
}

fn read_head(request: &httparse::Request<'_, '_>) -> Option<ParsedHead> {
    let field = |name: &str| {
        let found = request.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        found.and_then(|field| std::str::from_utf8(field.value).ok()).map(str::trim)
    };
    let path = request.path?;
    let command = path.split('?').next().unwrap_or_default();
    let is_chunked = field("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
    let framing = match field("content-length") {
        _ if is_chunked => Framing::Chunked,
        Some(length) => Framing::Length(length.parse().ok()?),
        None => Framing::Length(0),
    };
    let connection = field("connection").unwrap_or_default();
    let keeps = connection.eq_ignore_ascii_case("keep-alive");
    Some(ParsedHead {
        head: Head {
            is_post: request.method == Some("POST"),
            command: command.strip_prefix('/').unwrap_or(command).to_owned(),
        },
        framing,
        expects: field("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")),
        close: connection.eq_ignore_ascii_case("close") || (request.version == Some(0) && !keeps),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_all(bytes: &[u8], step: usize) -> Vec<Part> {
        let mut reader = Reader::default();
        let mut input = BytesMut::new();
        let mut parts = Vec::new();
        for piece in bytes.chunks(step) {
            input.extend_from_slice(piece);
            while let Some(part) = reader.next(&mut input) {
                let malformed = part == Part::Malformed;
                parts.push(part);
                if malformed {
                    return parts;
                }
            }
        }
        parts
    }

    fn post(command: &str, body: &str) -> Part {
        Part::Request(Head { is_post: true, command: command.to_owned() }, body.as_bytes().to_vec())
    }

    #[test]
    fn requests_come_out_whole_however_they_are_cut() {
        let bytes = b"POST /help?x=1 HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}POST /health HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
        for step in 1..bytes.len() {
            assert_eq!(read_all(bytes, step), [post("help", "{}"), post("health", "{}")], "{step}");
        }
    }

    #[test]
    fn the_limit_is_judged_by_the_head_and_the_body_is_skipped() {
        let mut bytes = b"POST /a HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n".to_vec();
        assert_eq!(read_all(&bytes, 7), [Part::TooLarge { close: false }]);
        bytes.extend(vec![b'x'; MAX_BODY + 1]);
        bytes.extend(b"POST /b HTTP/1.1\r\n\r\n");
        assert_eq!(read_all(&bytes, 4096), [Part::TooLarge { close: false }, post("b", "")]);
        let closing = b"POST /a HTTP/1.0\r\nContent-Length: 1048577\r\n\r\n";
        assert_eq!(read_all(closing, 100), [Part::TooLarge { close: true }]);
    }

    #[test]
    fn leave_to_send_comes_before_the_body() {
        let bytes = b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(read_all(bytes, 3), [Part::Continue, post("a", "{}")]);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..400), step in 1_usize..50) {
            let _ = read_all(&bytes, step);
        }
    }
}
