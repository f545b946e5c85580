// Package oracle checks journals and receipts that our code wrote with code
// that we did not write: transparency-dev's Merkle tree, note and proof
// formats, tessera's fsck, and secure-systems-lab's DSSE. It is a module of its
// own so that none of them is a dependency of Palyra.
//
//	cd conformance/oracle && go test ./...
//
// What it does not protect against: an error in the specification that both
// sides read the same way.
package oracle
