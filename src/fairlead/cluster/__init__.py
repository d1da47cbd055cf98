"""The cluster: message managers with their queues and topics. What is beside `edge/` only computes."""
