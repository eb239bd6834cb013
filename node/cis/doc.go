// Package cis checks the controls of the CIS Kubernetes Benchmark for a node: chapter 4, and the files of the
// Container Network Interface. Read reads the facts, and Check, which is a pure function, returns the results. They
// are executed by the agent, or by `berth check --cis` itself if the agent is not running.
package cis
