//! Reading the bytes of a file from the front, with errors that name the offset.
//!
//! Nothing here knows a format or a path: [`Wrong`] is completed with the file by the caller.

/// What is wrong with the bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// Offset in bytes.
    pub(crate) offset: usize,
    pub(crate) expected: String,
    pub(crate) got: String,
}

impl Wrong {
    pub(crate) fn at(offset: usize, expected: impl Into<String>, got: impl Into<String>) -> Self {
        Wrong { offset, expected: expected.into(), got: got.into() }
    }
}

/// The bytes of a file, and how many of them were read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(all: &'a [u8]) -> Self {
        Bytes { all, at: 0 }
    }

    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.all.len()
    }

    /// The next `length` bytes; `what` they are, for the error.
    pub(crate) fn take(&mut self, length: usize, what: &str) -> Result<&'a [u8], Wrong> {
        let rest = &self.all[self.at..];
        let Some(taken) = rest.get(..length) else {
            let expected = format!("{length} bytes of {what}");
            return Err(Wrong::at(self.at, expected, format!("the end of the file after {}", rest.len())));
        };
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Wrong> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, what: &str) -> Result<u8, Wrong> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(crate) fn u16(&mut self, what: &str) -> Result<u16, Wrong> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, Wrong> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, Wrong> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// The bytes up to a line end, which is skipped.
    pub(crate) fn line(&mut self, what: &str) -> Result<&'a [u8], Wrong> {
        let rest = &self.all[self.at..];
        let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
            return Err(Wrong::at(self.at, format!("a line of {what}"), "the end of the file"));
        };
        self.at += length + 1;
        Ok(&rest[..length])
    }
}
