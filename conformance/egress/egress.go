// Package egress has the tests of what a cell reaches: palyra exec --egress with real programs, in
// a world (conformance/world) that the test can change. Each test has a control: the same program
// outside of a cell reaches what it doesn't reach inside, and each compares the receipt with what
// arrived at the servers.
//
// figures measures connections through palyra-egress beside direct ones and other proxies.
//
// The binaries are built by the test itself. A user who can't build gets a compiled test and the
// binaries:
//
//	go test -c -o /tmp/t/ . && setpriv ... /tmp/t/egress.test -bin /tmp/t/bin
package egress
