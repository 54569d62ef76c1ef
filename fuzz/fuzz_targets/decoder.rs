//! Everything that a peer may send, decoded from any bytes. The corpus also runs as an ordinary test of `openfleet-dist`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| openfleet_testkit::hostile::decode_as_everything(bytes));
