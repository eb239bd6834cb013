// Command testbox runs in containers of tests.
//
// Its arguments are steps, separated by comma arguments, which run one after the other:
//
//	testbox print hello , sleep 2s , exit 3
//
// Steps:
//
//	serve [PORT [TLS]]     HTTP on PORT (8080, or $PORT): / host name, /env, /env/NAME, /headers, /peer, /file?name=,
//	                       /healthz (and POST /healthz?code=503 to change it), /delay?d=1s, /redirect?to=URL,
//	                       POST /exit?code=1, POST /deny for an admission webhook that denies; the same on TLS with
//	                       the certificate in $TLS_CERT and $TLS_KEY, or a self-signed one
//	tcp PORT [FILE]        echo TCP server; with FILE only while it exists
//	grpc PORT [FILE]       gRPC health protocol: SERVING; with FILE only while it exists
//	udp PORT               echo datagrams
//	get URL                one HTTP GET: print status and body; exit 1 on an error
//	server [PATH]          one request to the API server at KUBERNETES_SERVICE_HOST as the pod's service account;
//	                       with a PATH that ends with reviews, a SelfSubjectReview
//	dial ADDRESS           open one TCP connection
//	print TEXT…            print a line on stdout
//	warn TEXT…             print a line on stderr
//	lines N [BYTES [GAP]]  print N numbered lines of BYTES each, with delay GAP
//	partial TEXT           print text without a newline
//	exit [N]               exit with code N
//	crash                  panic (exit code 2)
//	sleep [D]              sleep for D, or forever; SIGTERM exits with code 143
//	ignore-term            from now on, print a line on SIGTERM and ignore it
//	on-term D [N]          from now on, exit with code N after D on SIGTERM
//	write FILE TEXT…       replace the content of FILE
//	append FILE TEXT…      add a line to FILE
//	cat FILE…              print the content
//	follow FILE [GAP]      print the content whenever it changes, forever
//	await FILE             wait until FILE exists
//	remove FILE            remove FILE
//	stat FILE…             print mode, uid:gid, size, link target
//	ls DIR                 print names and modes
//	fill FILE MIB          write MIB of zeroes
//	alloc MIB              allocate memory, touch it and keep it
//	spin [D]               use a whole CPU for D, or forever
//	fork N                 start N children that exit at once and are not reaped
//	threads N              start N threads that keep running
//	open N                 open N files that stay open
//	env [NAME]             print the sorted environment, or one variable
//	args                   print all arguments, one per line
//	id                     print uid, gid, groups
//	pwd, hostname, mounts, cgroup, status, limits, namespaces, resolv, tty, addrs
//	stdin                  copy stdin to stdout
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	code := make(chan int, 1)
	onTerm(func() { os.Exit(128 + int(syscall.SIGTERM)) })
	go func() { code <- steps(os.Args[1:]) }()
	os.Exit(<-code)
}

// steps runs the steps and returns the exit code.
func steps(args []string) int {
	for len(args) > 0 {
		step := args
		args = nil
		for i, a := range step {
			if a == "," {
				step, args = step[:i], step[i+1:]
				break
			}
		}
		if len(step) == 0 {
			continue
		}
		if step[0] == "exit" {
			return int(number(arg(step, 1, "0")))
		}
		do, ok := stepFuncs[step[0]]
		if !ok {
			fmt.Fprintf(os.Stderr, "testbox: unknown step %q\n", step[0])
			return 64
		}
		if err := do(step[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "testbox: %s: %v\n", step[0], err)
			return 1
		}
	}
	return 0
}

var stepFuncs map[string]func(args []string) error

func init() {
	stepFuncs = map[string]func(args []string) error{
		"serve": serve, "tcp": tcp, "grpc": serveGRPC, "udp": udp, "get": get, "server": server, "dial": dial,
		"lookup":  lookup,
		"print":   func(a []string) error { fmt.Println(strings.Join(a, " ")); return nil },
		"warn":    func(a []string) error { fmt.Fprintln(os.Stderr, strings.Join(a, " ")); return nil },
		"partial": func(a []string) error { fmt.Print(strings.Join(a, " ")); return nil },
		"lines":   lines,
		"crash":   func([]string) error { panic("requested crash") },
		"sleep":   sleep, "ignore-term": ignoreTerm, "on-term": onTermStep,
		"write": write, "append": appendLine, "cat": cat, "follow": follow, "await": await,
		"remove": func(a []string) error { return os.Remove(arg(a, 0, "")) },
		"stat":   stat, "ls": ls, "fill": fill, "files": files, "stdin": stdin,
		"alloc": alloc, "spin": spin, "fork": fork, "threads": threads, "open": open,
		"env": env, "id": id, "addrs": addrs, "tty": tty, "namespaces": namespaces,
		"args":     func([]string) error { fmt.Println(strings.Join(os.Args, "\n")); return nil },
		"pwd":      func([]string) error { d, err := os.Getwd(); fmt.Println(d); return err },
		"hostname": func([]string) error { h, err := os.Hostname(); fmt.Println(h); return err },
		"mounts":   func([]string) error { return cat([]string{"/proc/self/mountinfo"}) },
		"cgroup":   func([]string) error { return cat([]string{"/proc/self/cgroup"}) },
		"status":   func([]string) error { return cat([]string{"/proc/self/status"}) },
		"limits":   func([]string) error { return cat([]string{"/proc/self/limits"}) },
		"resolv":   func([]string) error { return cat([]string{"/etc/resolv.conf"}) },
	}
}

// termHandler is called on SIGTERM. Steps can replace it.
var termHandler atomic.Pointer[func()]

// onTerm replaces the handler of SIGTERM. Without a handler, process 1 does not receive SIGTERM.
func onTerm(f func()) {
	if termHandler.Swap(&f) != nil {
		return
	}
	sigs := make(chan os.Signal, 8)
	signal.Notify(sigs, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for range sigs {
			(*termHandler.Load())()
		}
	}()
}

func ignoreTerm([]string) error {
	onTerm(func() { fmt.Println("ignored TERM") })
	return nil
}

func onTermStep(a []string) error {
	d, err := time.ParseDuration(arg(a, 0, "0s"))
	code := int(number(arg(a, 1, "0")))
	onTerm(func() {
		fmt.Println("got TERM")
		time.Sleep(d)
		os.Exit(code)
	})
	return err
}

func sleep(a []string) error {
	if len(a) == 0 {
		select {}
	}
	d, err := time.ParseDuration(a[0])
	if err != nil {
		secs, perr := strconv.ParseFloat(a[0], 64)
		if perr != nil {
			return err
		}
		d = time.Duration(secs * float64(time.Second))
	}
	time.Sleep(d)
	return nil
}

// arg returns the i-th argument or a default.
func arg(a []string, i int, fallback string) string {
	if i < len(a) {
		return a[i]
	}
	return fallback
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		fmt.Fprintf(os.Stderr, "testbox: %q is not a number\n", s)
		os.Exit(64)
	}
	return n
}
