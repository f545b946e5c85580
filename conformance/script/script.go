// Package script holds command line tests of the built binaries as text:
// testdata/area_behaviour.txt, one behaviour each, run by testscript. A reader
// can run the lines of one by hand.
//
// Besides testscript's own commands there are
//
//	palyra ARG...           run palyra, which must end with status 0
//	status N CMD ARG...     run CMD, which must end with status N
//	answer WORD N CMD...    run CMD on a terminal and type WORD at the prompt;
//	                        "code" is what the prompt asks for, "ctrl-c" the
//	                        interrupt key; it must end with status N
//	session N CMD ARG...    the same on a terminal without typing
//	interrupt TEXT N CMD... the same, with ctrl-C once TEXT was shown
//	mkfifo, fill, flip      make a FIFO, a file of N spaces; flip one bit of a
//	                        file
//	daemon POLICYDIR ...    start palyrad until the script ends; KEY=VALUE sets a key of
//	                        its workspace src
//	talk FILE N CMD ARG...  hold a dialog in lines with CMD (daemon_test.go says how)
//	nothingleft             no process of this script's and no temporary file
//	                        is left
//
// and the conditions [root], [userns] and [tmpfs]. Standard output and error of
// status and answer go to the commands stdout and stderr; with answer, stderr
// is what the terminal showed. $STATE is the state directory, which the first
// call makes; $HOSTILE is the demo's hostile program, $EXAMPLES the folder examples.
//
// The binaries are built by the test itself, so that it cannot test old ones.
// A user who cannot build gets a compiled test and the binaries:
//
//	go test -c -o /tmp/t/ . && setpriv ... /tmp/t/script.test -bin /tmp/t/bin
package script
