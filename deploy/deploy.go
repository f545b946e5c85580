// Package deploy holds what a host needs to run palyrad as a service: systemd
// units, users, directories, AppArmor profiles and an example configuration.
// There is no code in it; the tests hold the files to what they promise.
//
//	deploy/systemd     palyrad.service and palyra-cell.service with their sockets
//	deploy/sysusers.d  the user palyra and the group palyra-users
//	deploy/tmpfiles.d  directories
//	deploy/apparmor.d  profiles
//	deploy/palyrad.toml
//
// What it does not protect against: a host on which the files were edited. The
// tests look at these, not at those.
package deploy
