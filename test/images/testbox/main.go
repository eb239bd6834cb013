// Command testbox does in a container what tests of a node agent want to see.
//
// Its arguments are steps, separated by a lone comma, done one after the other:
//
//	testbox print hello , sleep 2s , exit 3
//
// Steps:
//
//	serve [PORT [TLS]]     HTTP on PORT (8080, or $PORT): / host name, /env, /env/NAME, /headers, /peer, /file?name=,
//	                       /healthz (and POST /healthz?code=503 to change it), /delay?d=1s, /redirect?to=URL,
//	                       POST /exit?code=1; the same on TLS with a certificate signed by itself
//	tcp PORT [FILE]        accept TCP connections and echo; with FILE only while it exists
//	grpc PORT [FILE]       gRPC's health protocol: SERVING; with FILE only while it exists
//	udp PORT               echo datagrams
//	get URL                one HTTP GET: status and body on stdout; exit 1 on an error
//	server [PATH]          one request to the API server as the pod's service account, where KUBERNETES_SERVICE_HOST says;
//	                       a PATH of selfsubjectreviews asks who the pod is
//	dial ADDRESS           one TCP connection
//	print TEXT…            a line on stdout
//	warn TEXT…             a line on stderr
//	lines N [BYTES [GAP]]  N numbered lines of BYTES each, GAP apart
//	partial TEXT           text without an end of line
//	exit [N]               end with exit code N
//	crash                  end with a panic (exit code 2)
//	sleep [D]              sleep for D, or for ever; TERM ends it with 143
//	ignore-term            from here TERM is reported on stdout and ignored
//	on-term D [N]          from here on TERM ends it with exit code N after D
//	write FILE TEXT…       replace the content of FILE
//	append FILE TEXT…      add a line to FILE
//	cat FILE…              content on stdout
//	follow FILE [GAP]      content on stdout whenever it changes, for ever
//	await FILE             wait until FILE exists
//	remove FILE            remove it
//	stat FILE…             mode, uid:gid, size, link target
//	ls DIR                 names and modes
//	fill FILE MIB          write MIB of zeroes
//	alloc MIB              take memory, touch it and keep it
//	spin [D]               use a whole CPU for D, or for ever
//	fork N                 start N children that end at once and are not waited for
//	threads N              start N threads that stay
//	open N                 open N files that stay open
//	env [NAME]             environment, sorted, or the value of one variable
//	args                   all arguments, one a line
//	id                     uid, gid, groups
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

// steps does the steps and returns the exit code.
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
		do, ok := verbs[step[0]]
		if !ok {
			fmt.Fprintf(os.Stderr, "testbox: there is no step %q\n", step[0])
			return 64
		}
		if err := do(step[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "testbox: %s: %v\n", step[0], err)
			return 1
		}
	}
	return 0
}

var verbs map[string]func(args []string) error

func init() {
	verbs = map[string]func(args []string) error{
		"serve": serve, "tcp": tcp, "grpc": serveGRPC, "udp": udp, "get": get, "server": server, "dial": dial,
		"print":   func(a []string) error { fmt.Println(strings.Join(a, " ")); return nil },
		"warn":    func(a []string) error { fmt.Fprintln(os.Stderr, strings.Join(a, " ")); return nil },
		"partial": func(a []string) error { fmt.Print(strings.Join(a, " ")); return nil },
		"lines":   lines,
		"crash":   func([]string) error { panic("crash, as told") },
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

// termed is what TERM does; atomic, because a step may change it.
var termed atomic.Pointer[func()]

// onTerm sets what TERM does from now on. As process 1 a program that does not
// ask for TERM never gets it.
func onTerm(f func()) {
	if termed.Swap(&f) != nil {
		return
	}
	sigs := make(chan os.Signal, 8)
	signal.Notify(sigs, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for range sigs {
			(*termed.Load())()
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

// arg returns the i-th argument, or what stands for it.
func arg(a []string, i int, otherwise string) string {
	if i < len(a) {
		return a[i]
	}
	return otherwise
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		fmt.Fprintf(os.Stderr, "testbox: %q is not a number\n", s)
		os.Exit(64)
	}
	return n
}
