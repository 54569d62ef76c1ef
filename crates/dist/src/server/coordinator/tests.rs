//! Histories of events, and what the coordinator makes of them.
