// Package podlogs connects the log files of package cri/crilog to the pods of the node: which logs
// grow and are rotated, which ones belong to a pod, and which one follows when a container
// restarts. It reads the status cache and decides nothing about pods.
package podlogs
