// Package cis checks the controls of the CIS Kubernetes Benchmark for the control server and the objects of the
// cluster: chapters 1, 2, 3 and 5. Read reads the facts from files, the effective configuration and the running
// server, and Check, which is a pure function, returns the results.
package cis
