// Package test holds the end-to-end tests: real boxes on the real engine, made
// through the library and through the hutch command, as root and as ordinary
// users with and without subordinate ids. What a driver promises call by call
// is in package box/boxtest; here is what only shows in the whole: processes
// that die, homes that are shared, hosts that must stay unseen and unhurt, and
// what a command leaves behind.
//
// The tests need the programs that run in boxes, as "make test" builds them;
// without them they are skipped. The environment has these knobs:
//
//	HUTCH_BIN           the hutch command; else ../bin/hutch, else ../.bin/hutch
//	HUTCH_TEST_CACHE    where the Debian image is kept between runs; else the
//	                    user's cache folder
//	HUTCH_CRASH_ROUNDS  how often each process of a box is killed; default 50
//	                    as root, a tenth of it as a user, and 5 with -short
//
// As root, every test runs three times: as root and, in processes of their
// own, as two accounts that are made for the run and removed after it.
package test
