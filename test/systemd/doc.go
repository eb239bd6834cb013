// Package systemd contains only tests. They run berth as a service on a host of test/nspawn, with
// the commands of docs/install.md: installation, configuration, crashes, hung loops, upgrades,
// reboots, power loss and removal. No container is restarted without need, and nothing remains
// after removal. The same tests run with the Debian packages. On another host, the tests follow
// docs/operate.md line by line.
package systemd
