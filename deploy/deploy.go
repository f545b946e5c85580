// Package deploy holds what a host needs to run palyrad as a service: systemd
// units, users, directories, AppArmor profiles and an example configuration.
// There is no code in it; the tests hold the files to what they promise.
//
//	deploy/systemd     palyrad.service and palyra-cell.service with their sockets, and units beside them
//	deploy/sysusers.d  the user palyra and the group palyra-users
//	deploy/tmpfiles.d  directories
//	deploy/apparmor.d  profiles
//	deploy/palyrad.toml
//
// The package doesn't protect against a host on which the files were edited: the tests look
// at these files only.
package deploy
