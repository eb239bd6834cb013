package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: lint strings|commits DIR")
		os.Exit(2)
	}
	checks := map[string]func(dir string) ([]string, error){"strings": checkStrings, "commits": checkCommits}
	check, ok := checks[os.Args[1]]
	if !ok {
		fmt.Fprintf(os.Stderr, "lint: unknown check %q\n", os.Args[1])
		os.Exit(2)
	}
	found, err := check(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "lint:", err)
		os.Exit(2)
	}
	for _, line := range found {
		fmt.Println(line)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}
