//! Requests of workers that have lost their minds, in every mode. The corpus also runs as an ordinary test of `openfleet-dist`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| openfleet_testkit::hostile::ask_anything(bytes));
